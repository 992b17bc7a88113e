/* threadpool.h - the public interface of libthreadpool.
 *
 * A pool is a set of worker threads. Fork-join work is done by functions of type threadpool_fn, which
 * get the worker they run on and hand it to everything they call here. The fastest way to fork, for C
 * programs, is in threadpool_fork.h; everything here works from C++ and by an FFI as well.
 *
 * Functions return 0 (ERR_SUCCESS) or a negative code of threadpool_errors.h; threadpool_error_text
 * says what it means. [any] may be called on any thread; [W] only on the worker that is passed.
 */
#ifndef THREADPOOL_H
#define THREADPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "threadpool_errors.h"

#if defined(__GNUC__)
#define THREADPOOL_API __attribute__((visibility("default")))
#else
#define THREADPOOL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a function or a structure below changes in a way that a program must be rebuilt for. */
#define THREADPOOL_ABI 1

typedef struct threadpool threadpool_t;
typedef struct threadpool_worker threadpool_worker;
typedef void (*threadpool_fn)(threadpool_worker *w, void *arg);

/* --- a pool ------------------------------------------------------------------------------------ */

enum { THREADPOOL_MAX_WORKERS = 1024, THREADPOOL_MAX_BLOCKING = 65536 };

/* All zero means: the defaults. */
typedef struct threadpool_options {
  int workers;  /* worker threads; 0 = the CPUs this process may use (affinity, cgroup quota) */
  int blocking; /* threads beyond the workers, for what blocks; 0 = 512 */
  int drain_ms; /* how long shutdown lets tasks finish before it cancels; 0 = 5000, -1 = not at all */
  int park_timeout_ms; /* look around at least this often when idle; 0 = never, nothing is ever missed */
  bool idle_yield; /* give the core away between looks, before sleeping: slower to wake */
  bool pin;        /* one CPU for each worker */
} threadpool_options;

/* [any] Make a pool; `options` NULL = defaults; `error` may be NULL, else it gets the code.
 * NULL: ERR_INVALID_ARGUMENT (a number out of range), ERR_MALLOC_FAILED (memory, threads).
 *
 *   threadpool_options o = {.workers = 4};
 *   threadpool_t *pool = threadpool_create_with(&o, NULL);
 */
THREADPOOL_API threadpool_t *threadpool_create_with(const threadpool_options *options, int *error);

/* [any but a worker of the pool] Let what was begun finish (drain_ms), cancel the rest, join all
 * threads and free everything but the handle, of 64 bytes: calls that come late get ERR_SHUTDOWN.
 * ERR_INVALID_ARGUMENT: NULL, or already shut down; ERR_WRONG_THREAD: called from inside it. */
THREADPOOL_API int threadpool_shutdown(threadpool_t *pool);

/* [any] Worker threads of the pool; 0 for NULL and for one that is closed. */
THREADPOOL_API int threadpool_workers(threadpool_t *pool);

/* [any] "ERR_TIMEOUT", "timed out". Static text, never NULL. */
THREADPOOL_API const char *threadpool_error_name(int code);
THREADPOOL_API const char *threadpool_error_text(int code);
/* [any] THREADPOOL_ABI of the library that is loaded. */
THREADPOOL_API int threadpool_abi(void);

/* --- fork and join ----------------------------------------------------------------------------- */

/* [any] Run fn(worker, arg) in the pool and wait for its end. The calling thread runs it itself in the
 * pool's main seat if that is free; else a worker does. ERR_SHUTDOWN: the pool is closing. */
THREADPOOL_API int threadpool_call(threadpool_t *pool, threadpool_fn fn, void *arg);

/* [any] The worker this thread is just now, or NULL. */
THREADPOOL_API threadpool_worker *threadpool_current(void);

/* [W] Run both, perhaps at the same time; return when both are done. If nobody is free to help, b simply
 * comes after a. ERR_WRONG_THREAD: w is not the worker of this thread, nothing was run. */
THREADPOOL_API int threadpool_join(threadpool_worker *w, threadpool_fn a, void *a_arg,
                                   threadpool_fn b, void *b_arg);

/* A scope: any number of spawns, all of them done when threadpool_scope_end returns. Every spawn is
 * offered to the other workers at once. Lives on the stack; its fields are the library's. */
typedef struct threadpool_scope {
  threadpool_worker *home;
  int64_t pending;
  uint32_t latch;
} threadpool_scope;

/* [W] Open a scope on this worker. ERR_WRONG_THREAD as above. */
THREADPOOL_API int threadpool_scope_begin(threadpool_worker *w, threadpool_scope *scope);
/* [W, any worker that runs inside the scope] When memory is out, fn is run before this returns. */
THREADPOOL_API int threadpool_spawn(threadpool_worker *w, threadpool_scope *scope, threadpool_fn fn,
                                    void *arg);
/* [W, the one that began] Help, and return when everything spawned has run. */
THREADPOOL_API int threadpool_scope_end(threadpool_worker *w, threadpool_scope *scope);

/* [any] Run fn once on every worker thread, and return when all have. From inside the pool too. Each
 * worker runs it when it is done with what it is doing. */
THREADPOOL_API int threadpool_broadcast(threadpool_t *pool, threadpool_fn fn, void *arg);

/* --- loops over ranges ------------------------------------------------------------------------- */
/* All [W]. The range is split only when somebody is there to take a part, so a skewed loop balances
 * itself; `grain` is the least piece, 0 = chosen from the length. ERR_INVALID_ARGUMENT: a NULL function
 * or a negative grain. An empty range is fine. */

/* body(w, begin, end, arg) for pieces that cover [begin, end) exactly once. */
typedef void (*threadpool_range_fn)(threadpool_worker *w, int64_t begin, int64_t end, void *arg);
THREADPOOL_API int threadpool_for(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                                  threadpool_range_fn body, void *arg);

/* Fold a range. `result` holds the identity when called (say 0 for a sum) and the answer afterwards;
 * it is copied, `size` bytes, for each piece that is split off (at most 1024). fold adds [begin, end)
 * to acc; merge adds `right` to acc. The order is kept, so merge need only be associative. */
typedef struct threadpool_reducer {
  size_t size;
  void (*fold)(threadpool_worker *w, int64_t begin, int64_t end, void *acc, void *arg);
  void (*merge)(void *acc, const void *right, void *arg);
} threadpool_reducer;
THREADPOOL_API int threadpool_reduce(threadpool_worker *w, int64_t begin, int64_t end,
                                     int64_t grain, const threadpool_reducer *reducer, void *result,
                                     void *arg);

/* out[i] = fn(in[i]) for n elements of in_size and out_size bytes. */
typedef void (*threadpool_map_fn)(threadpool_worker *w, const void *in, void *out, void *arg);
THREADPOOL_API int threadpool_map(threadpool_worker *w, const void *in, size_t in_size, void *out,
                                  size_t out_size, int64_t n, int64_t grain, threadpool_map_fn fn,
                                  void *arg);

/* The lowest i of [begin, end) for which match is true, in *found; `end` if there is none. Pieces beyond
 * a match already found are not looked at. */
typedef bool (*threadpool_match_fn)(threadpool_worker *w, int64_t i, void *arg);
THREADPOOL_API int threadpool_find(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                                   threadpool_match_fn match, void *arg, int64_t *found);

/* Sort n elements of `size` bytes: a stable merge sort that needs as much memory again
 * (ERR_MALLOC_FAILED without it; nothing was moved). compare as for qsort. */
typedef int (*threadpool_compare_fn)(const void *a, const void *b, void *arg);
THREADPOOL_API int threadpool_sort(threadpool_worker *w, void *base, size_t n, size_t size,
                                   threadpool_compare_fn compare, void *arg);
/* The same for plain numbers, several times faster. NaNs come last. */
THREADPOOL_API int threadpool_sort_i64(threadpool_worker *w, int64_t *base, size_t n);
THREADPOOL_API int threadpool_sort_u64(threadpool_worker *w, uint64_t *base, size_t n);
THREADPOOL_API int threadpool_sort_f64(threadpool_worker *w, double *base, size_t n);

/* --- statistics -------------------------------------------------------------------------------- */

/* Each worker counts for itself, on its own cache line. X(name, what it counts) */
#define THREADPOOL_COUNTERS(X)                                                                     \
  X(executed, "tasks, injected calls and stolen jobs that were run")                               \
  X(stolen, "jobs, tasks and batches taken from another worker")                                   \
  X(parked, "times it blocked because there was nothing to do")                                    \
  X(waited, "times it blocked until a job another worker had was done")                            \
  X(woken, "times somebody woke it")                                                               \
  X(overflowed, "times a full ring gave half of itself to the global queue")                       \
  X(batches, "batches it took from the global queue")                                              \
  X(lifo_capped, "times the ring went first after 3 tasks from the LIFO slot")                     \
  X(lifo_stolen, "tasks it took from another's LIFO slot")                                         \
  X(half_steals, "times it took half of another's ring")                                           \
  X(jobs_stolen, "jobs it took from another's deque")                                              \
  X(from_high, "tasks it fetched from the high-priority queue")                                    \
  X(from_normal, "tasks it fetched from the normal queue")                                         \
  X(from_low, "tasks it fetched from the low-priority queue")                                      \
  X(substitutes, "times its seat was given to another thread")                                     \
  X(wakes_by_post, "sleepers woken because it posted work")                                        \
  X(wakes_by_finder, "sleepers woken because it found more work than it took")                     \
  X(wakes_of_waiter, "join waiters woken to help")                                                 \
  X(wakes_deferred, "times it left a wake to the alarm")                                           \
  X(wakes_by_alarm, "sleepers and join waiters woken by the alarm")                                \
  X(exposed, "forks that were offered to others")

typedef struct threadpool_counters {
#define THREADPOOL_COUNTER_MEMBER(name, text) uint64_t name;
  THREADPOOL_COUNTERS(THREADPOOL_COUNTER_MEMBER)
#undef THREADPOOL_COUNTER_MEMBER
} threadpool_counters;

/* [any] Recent values of worker `index`; threadpool_workers(pool) is the main seat, -1 the sum of all.
 * ERR_INVALID_ARGUMENT: no such worker; ERR_SHUTDOWN. */
THREADPOOL_API int threadpool_stats(threadpool_t *pool, int index, threadpool_counters *out);

#ifdef __cplusplus
}
#endif

#endif
