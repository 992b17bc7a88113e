/* test_misuse.c - wrong arguments, wrong threads and pools that are closing get a code; debug builds stop at
 * a broken rule. What test_fork.c has is not repeated. */
#include "test/help.h"

#include <limits.h>
#include <pthread.h>

#include "base/cpus.h"
#include "threadpool_fork.h"

static void nothing(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
}
static void count_call(threadpool_worker *w, void *arg) {
  (void)w;
  tp_add((_Atomic int *)arg, 1, relaxed);
}
static tp_poll at_once(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}

/* --- options */

static void options_out_of_range_make_no_pool(void **state) {
  (void)state;
  const threadpool_options bad[] = {
      {.blocking = -1},
      {.blocking = THREADPOOL_MAX_BLOCKING + 1},
      {.blocking = INT_MIN},
      {.drain_ms = -2},
      {.drain_ms = INT_MIN},
      {.park_timeout_ms = -1},
      {.park_timeout_ms = INT_MIN},
      {.workers = INT_MIN},
      {.workers = 2, .blocking = INT_MAX},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int error = 0;
    assert_null(threadpool_create_with(&bad[i], &error));
    assert_int_equal(error, ERR_INVALID_ARGUMENT);
    assert_null(threadpool_create_with(&bad[i], NULL));
  }
}

static void the_ends_of_each_range_are_fine(void **state) {
  (void)state;
  const threadpool_options good[] = {
      {.workers = 1, .blocking = THREADPOOL_MAX_BLOCKING},
      {.workers = 1, .blocking = 1},
      {.workers = 1, .drain_ms = -1},
      {.workers = 1, .drain_ms = INT_MAX},
      {.workers = 1, .park_timeout_ms = INT_MAX},
      {.workers = 1, .park_timeout_ms = 1},
      {.workers = 1, .pin = true},
      {.workers = 1, .idle_yield = true},
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    threadpool_t *pool = test_pool(good[i]);
    _Atomic int calls = 0;
    assert_int_equal(threadpool_broadcast(pool, count_call, (void *)&calls), 0);
    assert_int_equal(calls, 1);
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}

static void no_workers_means_one_for_each_cpu(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 0});
  assert_int_equal(threadpool_workers(pool), tp_cpus_available());
  assert_int_equal(threadpool_shutdown(pool), 0);
  assert_int_equal(threadpool_workers(NULL), 0);
}

/* --- arguments */

static void a_task_needs_a_function_and_a_priority(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 1});
  const tp_spawn_spec bad[] = {
      {.poll = NULL, .priority = TP_NORMAL},
      {.poll = NULL, .priority = TP_NORMAL, .blocking = true},
      {.poll = at_once, .priority = TP_PRIORITIES},
      {.poll = at_once, .priority = (tp_priority)-1},
      {.poll = at_once, .priority = (tp_priority)INT_MAX},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tp_task *t = (tp_task *)pool;
    assert_int_equal(tp_spawn(pool->tasks, &bad[i], &t), ERR_INVALID_ARGUMENT);
    assert_null(t);
    assert_int_equal(tp_spawn(pool->tasks, &bad[i], NULL), ERR_INVALID_ARGUMENT);
  }
  assert_int_equal(threadpool_shutdown(pool), 0); /* nothing was counted as spawned */
}

static void spawn_wrongly(threadpool_worker *w, void *arg) {
  threadpool_scope scope;
  test_must(threadpool_scope_begin(w, NULL) == ERR_INVALID_ARGUMENT);
  test_must(threadpool_spawn(w, NULL, count_call, arg) == ERR_INVALID_ARGUMENT);
  test_must(threadpool_scope_end(w, NULL) == ERR_INVALID_ARGUMENT);
  test_must(threadpool_scope_begin(w, &scope) == 0);
  test_must(threadpool_spawn(w, &scope, NULL, arg) == ERR_INVALID_ARGUMENT);
  test_must(threadpool_spawn(NULL, &scope, count_call, arg) == ERR_WRONG_THREAD);
  test_must(threadpool_scope_end(NULL, &scope) == ERR_WRONG_THREAD);
  test_must(threadpool_spawn(w, &scope, count_call, arg) == 0);
  test_must(threadpool_scope_end(w, &scope) == 0);
}
static void a_scope_is_not_hurt_by_wrong_spawns(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 1});
  _Atomic int calls = 0;
  assert_int_equal(threadpool_call(pool, spawn_wrongly, (void *)&calls), 0);
  assert_int_equal(calls, 1); /* the right one */
  assert_int_equal(threadpool_broadcast(pool, NULL, NULL), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_broadcast(NULL, nothing, NULL), ERR_INVALID_ARGUMENT);
  threadpool_counters c;
  assert_int_equal(threadpool_stats(pool, -2, &c), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_stats(pool, 2, &c), ERR_INVALID_ARGUMENT); /* 1 is the main seat */
  assert_int_equal(threadpool_stats(pool, 0, NULL), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_stats(NULL, 0, &c), ERR_INVALID_ARGUMENT);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- the worker of another thread */

typedef struct {
  threadpool_worker *w;
  threadpool_scope scope;
  threadpool_t *other;
  _Atomic int calls;
} foreign;

static void body(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  (void)begin, (void)end;
  count_call(w, arg);
}
static void fold(threadpool_worker *w, int64_t begin, int64_t end, void *acc, void *arg) {
  (void)acc;
  body(w, begin, end, arg);
}
static void merge(void *acc, const void *right, void *arg) {
  (void)acc, (void)right, (void)arg;
}
static void map(threadpool_worker *w, const void *in, void *out, void *arg) {
  (void)in, (void)out;
  count_call(w, arg);
}
static bool match(threadpool_worker *w, int64_t i, void *arg) {
  (void)i;
  count_call(w, arg);
  return true;
}
static int compare(const void *a, const void *b, void *arg) {
  (void)a, (void)b;
  count_call(NULL, arg);
  return 0;
}

/* Everything with a worker that is not this thread's. */
static void use_foreign_worker(foreign *f) {
  threadpool_worker *w = f->w;
  void *calls = (void *)&f->calls;
  threadpool_scope scope;
  int64_t in[4] = {4, 3, 2, 1}, out[4] = {0}, found = 77;
  uint64_t u[2] = {2, 1};
  double d[2] = {2, 1};
  const threadpool_reducer r = {sizeof(int64_t), fold, merge};
  test_must(threadpool_join(w, count_call, calls, count_call, calls) == ERR_WRONG_THREAD);
  test_must(threadpool_scope_begin(w, &scope) == ERR_WRONG_THREAD);
  test_must(threadpool_spawn(w, &f->scope, count_call, calls) == ERR_WRONG_THREAD);
  test_must(threadpool_scope_end(w, &f->scope) == ERR_WRONG_THREAD);
  test_must(threadpool_for(w, 0, 10, 1, body, calls) == ERR_WRONG_THREAD);
  test_must(threadpool_reduce(w, 0, 10, 1, &r, &found, calls) == ERR_WRONG_THREAD);
  test_must(threadpool_map(w, in, 8, out, 8, 4, 1, map, calls) == ERR_WRONG_THREAD);
  test_must(threadpool_find(w, 0, 10, 1, match, calls, &found) == ERR_WRONG_THREAD);
  test_must(threadpool_sort(w, in, 4, 8, compare, calls) == ERR_WRONG_THREAD);
  test_must(threadpool_sort_i64(w, in, 4) == ERR_WRONG_THREAD);
  test_must(threadpool_sort_u64(w, u, 2) == ERR_WRONG_THREAD);
  test_must(threadpool_sort_f64(w, d, 2) == ERR_WRONG_THREAD);
  test_must(in[0] == 4 && u[0] == 2 && d[0] == 2 && found == 77 && f->calls == 0);
}

static void *plain_thread(void *arg) {
  test_must(threadpool_current() == NULL);
  use_foreign_worker(arg);
  return NULL;
}
/* A worker of one pool, and the scope of another. */
static void worker_of_other_pool(threadpool_worker *w, void *arg) {
  foreign *f = arg;
  use_foreign_worker(f);
  test_must(threadpool_spawn(w, &f->scope, count_call, (void *)&f->calls) == ERR_WRONG_THREAD);
  test_must(threadpool_scope_end(w, &f->scope) == ERR_WRONG_THREAD);
}
static void lend_worker(threadpool_worker *w, void *arg) {
  foreign *f = arg;
  f->w = w;
  test_must(threadpool_scope_begin(w, &f->scope) == 0);
  pthread_t t;
  test_must(pthread_create(&t, NULL, plain_thread, f) == 0);
  pthread_join(t, NULL);
  /* This thread itself, while it is a worker of the other pool; then the other pool's own thread. */
  test_must(threadpool_call(f->other, worker_of_other_pool, f) == 0);
  test_must(threadpool_broadcast(f->other, worker_of_other_pool, f) == 0);
  test_must(threadpool_current() == w);
  test_must(f->calls == 0);
  test_must(threadpool_spawn(w, &f->scope, count_call, (void *)&f->calls) == 0);
  test_must(threadpool_scope_end(w, &f->scope) == 0);
}
static void a_worker_serves_its_own_thread_only(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2});
  foreign f = {.other = test_pool((threadpool_options){.workers = 1})};
  assert_int_equal(threadpool_call(pool, lend_worker, &f), 0);
  assert_int_equal(f.calls, 1);
  assert_int_equal(threadpool_shutdown(f.other), 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- a pool that is closing */

static threadpool_t *closing_pool;
static _Atomic int inside;
static _Atomic bool leave, closed;

static void stay(threadpool_worker *w, void *arg) {
  tp_add(&inside, 1, relaxed);
  test_wait(tp_load(&leave, acquire));
  /* What was begun may go on forking, but nothing more is begun. */
  test_must(threadpool_join(w, count_call, arg, count_call, arg) == 0);
  test_must(threadpool_call(closing_pool, nothing, NULL) == ERR_SHUTDOWN);
}
static void *caller(void *arg) {
  test_must(threadpool_call(closing_pool, stay, arg) == 0);
  return NULL;
}
static void *closer(void *arg) {
  test_must(threadpool_shutdown(closing_pool) == 0);
  tp_store(&closed, true, release);
  return arg;
}

/* If shutdown did not wait for the calls that are inside, they would use a pool that is gone: a crash, or
 * AddressSanitizer's finding. */
static void a_closing_pool_refuses_calls_and_lets_those_inside_end(void **state) {
  (void)state;
  for (int i = 0; i < test_size(5, 50); i++) {
    closing_pool = test_pool((threadpool_options){.workers = 2});
    inside = 0;
    leave = closed = false;
    _Atomic int calls = 0;
    pthread_t a[2], b; /* one call is in the main seat, the other on a worker */
    for (int k = 0; k < 2; k++)
      assert_int_equal(pthread_create(&a[k], NULL, caller, (void *)&calls), 0);
    test_wait(tp_load(&inside, relaxed) == 2);
    assert_int_equal(threadpool_call(closing_pool, nothing, NULL), 0);
    assert_int_equal(pthread_create(&b, NULL, closer, NULL), 0);
    test_wait(threadpool_call(closing_pool, nothing, NULL) == ERR_SHUTDOWN);
    assert_int_equal(threadpool_call(closing_pool, count_call, (void *)&calls), ERR_SHUTDOWN);
    assert_int_equal(threadpool_broadcast(closing_pool, count_call, (void *)&calls), ERR_SHUTDOWN);
    assert_int_equal(threadpool_shutdown(closing_pool), ERR_INVALID_ARGUMENT);
    assert_false(tp_load(&closed, acquire));
    assert_int_equal(calls, 0);
    tp_store(&leave, true, release);
    for (int k = 0; k < 2; k++) pthread_join(a[k], NULL);
    pthread_join(b, NULL);
    assert_true(closed);
    assert_int_equal(calls, 4);
  }
}

/* --- debug builds: a broken rule ends the program, and says which */

#ifdef TP_DEBUG
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void dies_saying(void (*break_rule)(void), const char *text) {
  int ends[2], status = 0;
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDERR_FILENO);
    break_rule();
    _exit(0); /* it was not noticed */
  }
  close(ends[1]);
  char said[1000] = "";
  size_t length = 0;
  for (ssize_t n; (n = read(ends[0], said + length, sizeof said - 1 - length)) > 0;)
    length += (size_t)n;
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  if (!strstr(said, text)) fail_msg("'%s' is not in what it said: '%s'", text, said);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGABRT);
}

static threadpool_worker *worker_of_another(void) {
  threadpool_options o = {.workers = 1};
  threadpool_t *pool = threadpool_create_with(&o, NULL);
  return pool ? &pool->sched->seats[0].front : NULL;
}
static void expose_for_another(void) {
  threadpool_fork_expose(worker_of_another());
}
static void sync_for_another(void) {
  threadpool_job job = {.fn = nothing};
  threadpool_sync_slow(worker_of_another(), &job);
}
static void pause_what_does_not_run(void) {
  tp_state s = TP_SCHEDULED + TP_REF_ONE;
  (void)!tp_state_pause(&s);
}
static void end_what_does_not_run(void) {
  tp_state s = TP_IDLE + TP_REF_ONE;
  (void)!tp_state_end(&s);
}
static void start_what_is_over(void) {
  tp_state s = TP_COMPLETE + TP_REF_ONE;
  (void)!tp_state_start(&s);
}
static void refer_to_what_is_gone(void) {
  tp_state s = TP_COMPLETE;
  tp_state_ref(&s);
}

static void debug_builds_stop_at_a_broken_rule(void **state) {
  (void)state;
  dies_saying(expose_for_another, "a fork belongs to the worker of this thread");
  dies_saying(sync_for_another, "a sync belongs to the worker of this thread");
  dies_saying(pause_what_does_not_run, "broken: K2");
  dies_saying(end_what_does_not_run, "broken: K2");
  dies_saying(start_what_is_over, "broken: K1");
  dies_saying(refer_to_what_is_gone, "broken: K7");
}
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(options_out_of_range_make_no_pool),
      cmocka_unit_test(the_ends_of_each_range_are_fine),
      cmocka_unit_test(no_workers_means_one_for_each_cpu),
      cmocka_unit_test(a_task_needs_a_function_and_a_priority),
      cmocka_unit_test(a_scope_is_not_hurt_by_wrong_spawns),
      cmocka_unit_test(a_worker_serves_its_own_thread_only),
      cmocka_unit_test(a_closing_pool_refuses_calls_and_lets_those_inside_end),
#ifdef TP_DEBUG
      cmocka_unit_test(debug_builds_stop_at_a_broken_rule),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
