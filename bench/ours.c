/* ours.c - threadpool itself. With n threads: n - 1 workers and the caller in the main seat. */
#include "harness.h"

#include <threadpool_fork.h>

static threadpool_t *pool;

static void start(int threads) {
  threadpool_options o = {.workers = threads > 1 ? threads - 1 : 1};
  int error;
  pool = threadpool_create_with(&o, &error);
  if (!pool) bench_fail("threadpool: %s", threadpool_error_text(error));
}

static void stop(void) {
  threadpool_shutdown(pool);
}

typedef struct {
  int n;
  int64_t result;
} call;

static int64_t fib_call(threadpool_worker *w, int n);
static void fib_run(threadpool_worker *w, void *arg) {
  call *c = arg;
  c->result = fib_call(w, c->n);
}
/* Apart, so that the compiler inlines the common case into itself as it does without forks. */
static __attribute__((noinline)) int64_t fib_fork(threadpool_worker *w, int n) {
  call b = {n - 2, 0};
  threadpool_job job;
  threadpool_fork(w, &job, fib_run, &b);
  int64_t a = fib_call(w, n - 1);
  threadpool_sync(w, &job);
  return a + b.result;
}
static int64_t fib_call(threadpool_worker *w, int n) {
  if (n < 2) return n;
  if (!threadpool_enough(w)) return fib_fork(w, n);
  return fib_call(w, n - 1) + fib_call(w, n - 2);
}
static int64_t fib(int n) {
  call c = {n, 0};
  threadpool_call(pool, fib_run, &c);
  return c.result;
}

static int64_t tree_call(threadpool_worker *w, int depth);
static void tree_run(threadpool_worker *w, void *arg) {
  call *c = arg;
  c->result = tree_call(w, c->n);
}
static __attribute__((noinline)) int64_t tree_fork(threadpool_worker *w, int depth) {
  call b = {depth - 1, 0};
  threadpool_job job;
  threadpool_fork(w, &job, tree_run, &b);
  int64_t a = tree_call(w, depth - 1);
  threadpool_sync(w, &job);
  return 1 + a + b.result;
}
static int64_t tree_call(threadpool_worker *w, int depth) {
  BENCH_NODE(depth);
  if (depth == 0) return 1;
  if (!threadpool_enough(w)) return tree_fork(w, depth);
  return 1 + tree_call(w, depth - 1) + tree_call(w, depth - 1);
}
static int64_t tree(int depth) {
  call c = {depth, 0};
  threadpool_call(pool, tree_run, &c);
  return c.result;
}

typedef struct {
  uint64_t *items;
  size_t n;
} array;
static void sort_run(threadpool_worker *w, void *arg) {
  array *a = arg;
  if (threadpool_sort_u64(w, a->items, a->n) != 0) bench_fail("no memory to sort in");
}
static void sort(uint64_t *items, size_t n) {
  array a = {items, n};
  threadpool_call(pool, sort_run, &a);
}

int main(int argc, char **argv) {
  const bench_impl impl = {.version = "threadpool",
                           .start = start,
                           .stop = stop,
                           .fib = fib,
                           .tree = tree,
                           .sort = sort};
  return bench_main(argc, argv, &impl);
}
