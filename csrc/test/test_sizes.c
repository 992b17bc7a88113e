/* test_sizes.c - the same for pools of 1 to 200 workers, on both sides of a word of the bitmaps: broadcast,
 * tasks, forks, and everybody asleep again, several times over.
 *
 * A worker beyond the first word that nobody wakes would be seen as a broadcast that does not end, one that
 * cannot fall asleep as a wait in vain. */
#include "test/help.h"

#include "threadpool_fork.h"

enum { MOST = 200, TASKS = 1000 };

static threadpool_t *pool;
static _Atomic int reached[MOST + 1]; /* by seat */

static void reach(threadpool_worker *w, void *arg) {
  (void)arg;
  test_must(threadpool_current() == w);
  tp_add(&reached[tp_worker_of(w)->index], 1, relaxed);
}
static void broadcast_inside(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
  test_must(threadpool_broadcast(pool, reach, NULL) == 0);
}
static tp_poll broadcast_in_task(tp_task *t, void *arg) {
  (void)t, (void)arg;
  test_must(threadpool_broadcast(pool, reach, NULL) == 0);
  return TP_READY;
}

static void each_worker_was_reached(int workers, int times) {
  for (int i = 0; i < workers; i++) assert_int_equal(reached[i], times);
  for (int i = workers; i <= MOST; i++) assert_int_equal(reached[i], 0); /* the main seat is none */
}

static tp_poll count(tp_task *t, void *arg) {
  (void)t;
  tp_add((_Atomic int *)arg, 1, relaxed);
  return TP_READY;
}

typedef struct {
  int depth;
  _Atomic int *leaves;
} tree;
static void fork_tree(threadpool_worker *w, void *arg) {
  tree *t = arg, less = {t->depth - 1, t->leaves};
  if (t->depth == 0) {
    tp_add(t->leaves, 1, relaxed);
    return;
  }
  threadpool_job job; /* always a fork, also where it would be elided */
  threadpool_fork(w, &job, fork_tree, &less);
  fork_tree(w, &less);
  threadpool_sync(w, &job);
}

static void pools_of_any_size_work_and_sleep(void **state) {
  (void)state;
  const int sizes[] = {1, 2, 64, 65, MOST};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    pool = test_pool((threadpool_options){.workers = sizes[i]});
    assert_int_equal(threadpool_workers(pool), sizes[i]);
    memset((void *)reached, 0, sizeof reached);
    for (int round = 0; round < test_size(3, 20); round++) {
      test_wait(test_all_parked(pool));
      assert_int_equal(threadpool_broadcast(pool, reach, NULL), 0);
      each_worker_was_reached(sizes[i], 3 * round + 1);
      assert_int_equal(threadpool_call(pool, broadcast_inside, NULL), 0);
      each_worker_was_reached(sizes[i], 3 * round + 2);
      assert_int_equal(test_end_of(test_spawn(pool, broadcast_in_task, NULL)), 0);
      each_worker_was_reached(sizes[i], 3 * round + 3);

      test_wait(test_all_parked(pool));
      _Atomic int done = 0;
      tp_task *t[TASKS];
      for (int k = 0; k < TASKS; k++) {
        tp_spawn_spec spec = {
            .poll = count, .arg = (void *)&done, .priority = (tp_priority)(k % TP_PRIORITIES)};
        assert_int_equal(tp_spawn(pool->tasks, &spec, &t[k]), 0);
      }
      for (int k = 0; k < TASKS; k++) assert_int_equal(test_end_of(t[k]), 0);
      assert_int_equal(done, TASKS);

      test_wait(test_all_parked(pool));
      done = 0;
      tree root = {10, &done};
      assert_int_equal(threadpool_call(pool, fork_tree, &root), 0);
      assert_int_equal(done, 1024);
    }
    test_wait(test_all_parked(pool));
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pools_of_any_size_work_and_sleep),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
