/* harness.h - measures one implementation; every program of the suite links it.
 *
 * What each workload is: README.md.   Depends on: pthreads, futex.
 *
 * A program fills in a bench_impl with what its implementation can do and calls
 * bench_main(). All timing, warming up, counting and checking is done here, once, so that
 * it is the same for each of them:
 *
 *   program <workload> <threads> <samples>    one number a line, in the workload's unit
 *   program version                           one line
 *
 * Exit 0: measured. 77: there is no such workload here. Anything else: a wrong result or a
 * wrong call, with a message on stderr.
 */
#ifndef BENCH_HARNESS_H
#define BENCH_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A request, and the text that its result has to be. */
typedef struct bench_request {
  const char *text;
  size_t length;
  const char *result; /* NULL: it has none */
  size_t result_length;
} bench_request;

/* Requests in JSON; the harness makes them. Called from one thread outside the pool; each
 * function returns when everything was done, and calls bench_check() for each result. */
typedef struct bench_json {
  /* One request, until its result is fetched and freed. */
  void (*roundtrip)(const bench_request *r);

  /* n times this request, so many handed over at once. Returns the number of results. */
  int64_t (*batch)(const bench_request *r, int64_t n, int batch);

  /* n times: the text is copied and parsed by the caller, then an empty task, which calls
   * bench_count(), is posted. */
  void (*parse)(const bench_request *r, int64_t n);

  /* [any thread] n times: look one of some symbols up by its name, pin it and give the pin back. */
  void (*symbols)(int64_t n);
} bench_json;

/* rows of dim floats, side by side, and a query of dim floats. */
typedef struct bench_matrix {
  const float *data, *query;
  int64_t rows, dim;
} bench_matrix;

/* What the implementation can do; NULL: no such workload. Every function but the last step
 * of a task is called from one thread outside the pool, submit() of submit4 from several.
 * The order of the members is known to rust/src/main.rs too.
 */
typedef struct bench_impl {
  const char *version;

  /* start() makes a pool of that many threads; stop() ends it. Both may be NULL. */
  void (*start)(int threads);
  void (*stop)(void);

  /* fib(n), a fork and a join at every call with n >= 2; returns the number. */
  int64_t (*fib)(int n);

  /* A complete binary tree: forks left and right at each node, down to depth 0; calls
   * BENCH_NODE(depth) at each node; returns the number of nodes. */
  int64_t (*tree)(int depth);

  /* n separate posts from the calling thread, each of one task that calls bench_count().
   * Does not wait for them. Producers are numbered from 0. */
  void (*submit)(int producer, int64_t n);

  /* Posts one task that calls bench_woken(). Does not wait for it. */
  void (*wake)(void);

  /* After submit() or wake(), when all their tasks have run; not timed. May be NULL. */
  void (*reap)(void);

  /* Inside the pool, n times: spawn a task that calls bench_count(), await it. */
  void (*spawn_await)(int64_t n);

  /* That many tasks at once; each yields that many times and calls bench_count() after
   * each. Returns when all are done. */
  void (*yield)(int tasks, int times);

  /* Sorts in place, ascending. */
  void (*sort)(uint64_t *items, size_t n);

  /* submit() may not be called from two threads at once: no submit4. */
  bool one_submitter;

  const bench_json *json;

  /* The k rows that have the largest cosines with the query, best first. */
  void (*topk)(const bench_matrix *m, int k, int64_t *indices, float *scores);
} bench_impl;

enum { BENCH_PRODUCERS = 4, BENCH_TASKS = 1000000 };

int bench_main(int argc, char **argv, const bench_impl *impl);

/* [any] An empty task's body: counts itself on a cache line of its own thread. */
void bench_count(void);

/* [outside] How often bench_count() was called; sleep until it was that often. */
int64_t bench_counted(void);
void bench_wait_for_count(int64_t n);

/* [any] Ends the program unless this is the result of the request. */
void bench_check(const bench_request *r, const void *data, size_t size);

/* [any] Body of the task of `wake`: reads the clock, then wakes the submitter. */
void bench_woken(void);

/* [any] Prints the message and ends the program: a wrong result is no measurement. */
#if defined(__GNUC__)
__attribute__((noreturn, format(printf, 1, 2)))
#endif
void bench_fail(const char *format, ...);

/* At each node of a tree: costs no instruction, but the compiler may not know the depth, as it
 * would not in a real tree. Else it folds the left subtree and the right one into one call, or
 * unrolls the lowest levels until two nodes share a cycle. */
#define BENCH_NODE(depth) __asm__ volatile("" : "+r"(depth))

#ifdef __cplusplus
}
#endif

#endif
