/* ours.c - threadpool itself. For fork-join n threads are n - 1 workers and the caller in the main seat;
 * tasks are run by the workers alone, so there n threads are n workers. */
#include "ours.h"

#include <string.h>

#include <api/pool.h>
#include <base/clock.h>
#include <threadpool_fork.h>

threadpool_t *pool;

static bool caller_works; /* the workload is fork-join */

static void start(int threads) {
  threadpool_options o = {.workers = caller_works && threads > 1 ? threads - 1 : threads};
  int error;
  pool = threadpool_create_with(&o, &error);
  if (!pool) bench_fail("threadpool: %s", threadpool_error_text(error));
  json_start();
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

/* pool NULL: the same kernels on the calling thread. */
static void best_of(threadpool_t *p, const bench_matrix *m, int k, int64_t *indices,
                    float *scores) {
  threadpool_matrix matrix = {(float *)m->data, m->rows, m->dim, 0};
  int64_t found;
  if (threadpool_vector_top(p, &matrix, m->query, k, THREADPOOL_COSINE, indices, scores, &found))
    bench_fail("threadpool_vector_top: %s", threadpool_last_error());
}
static void topk(const bench_matrix *m, int k, int64_t *indices, float *scores) {
  best_of(pool, m, k, indices, scores);
}
static void topk_alone(const bench_matrix *m, int k, int64_t *indices, float *scores) {
  best_of(NULL, m, k, indices, scores);
}

/* --- tasks */

static tp_poll count_task(tp_task *t, void *arg) {
  (void)t, (void)arg;
  bench_count();
  return TP_READY;
}
static void spawn(const tp_spawn_spec *spec, tp_task **handle) {
  int error = tp_spawn(pool->tasks, spec, handle);
  if (error) bench_fail("tp_spawn: %s", threadpool_error_text(error));
}
void post_empty(void) {
  static const tp_spawn_spec spec = {.poll = count_task, .priority = TP_NORMAL};
  spawn(&spec, NULL);
}
static void submit(int producer, int64_t n) {
  (void)producer;
  for (int64_t i = 0; i < n; i++) post_empty();
}

static tp_poll woken_task(tp_task *t, void *arg) {
  (void)t, (void)arg;
  bench_woken();
  return TP_READY;
}
static void wake(void) {
  const tp_spawn_spec spec = {.poll = woken_task, .priority = TP_NORMAL};
  spawn(&spec, NULL);
}

typedef struct {
  int64_t left;
  tp_task *child;
} parent;
static tp_poll parent_task(tp_task *t, void *arg) {
  static const tp_spawn_spec spec = {.poll = count_task, .priority = TP_NORMAL};
  parent *p = arg;
  for (;;) {
    if (p->child) {
      if (tp_task_await(t, p->child) == TP_PENDING) return TP_PENDING;
      tp_task_unref(p->child);
      p->child = NULL;
    }
    if (p->left-- == 0) return TP_READY;
    spawn(&spec, &p->child);
  }
}
static void spawn_await(int64_t n) {
  parent p = {n, NULL};
  const tp_spawn_spec spec = {.poll = parent_task, .arg = &p, .priority = TP_NORMAL};
  tp_task *t;
  spawn(&spec, &t);
  tp_task_wait(t, 0);
  tp_task_unref(t);
}

static tp_poll yield_task(tp_task *t, void *arg) {
  (void)t;
  int64_t *left = arg;
  bench_count();
  return --*left == 0 ? TP_READY : TP_YIELD;
}
static void yield(int tasks, int times) {
  struct {
    _Alignas(64) int64_t left;
    tp_task *task;
  } each[tasks];
  for (int i = 0; i < tasks; i++) {
    each[i].left = times;
    const tp_spawn_spec spec = {.poll = yield_task, .arg = &each[i].left, .priority = TP_NORMAL};
    spawn(&spec, &each[i].task);
  }
  for (int i = 0; i < tasks; i++) {
    tp_task_wait(each[i].task, 0);
    tp_task_unref(each[i].task);
  }
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "one_thread") == 0) {
    const bench_impl alone = {.version = "the kernels of threadpool, no pool", .topk = topk_alone};
    return bench_main(argc - 1, argv + 1, &alone);
  }
  bool parse_task = argc > 1 && strcmp(argv[1], "parse_task") == 0;
  if (parse_task) argc--, argv++;
  caller_works = argc > 1 && (strncmp(argv[1], "fib", 3) == 0 || strncmp(argv[1], "tree", 4) == 0 ||
                              strcmp(argv[1], "sort") == 0);
  const bench_impl impl = {.version = parse_task ? "yyjson, then an empty task of threadpool"
                                                 : "threadpool",
                           .start = start,
                           .stop = stop,
                           .fib = fib,
                           .tree = tree,
                           .submit = submit,
                           .wake = wake,
                           .spawn_await = spawn_await,
                           .yield = yield,
                           .sort = sort,
                           .json = parse_task ? &json_floor : &json_requests,
                           .topk = topk};
  return bench_main(argc, argv, &impl);
}
