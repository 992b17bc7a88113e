/* test_exact_jobs.c - ten million forks, ten million spawns of a scope, from one deep deque: each is run
 * exactly once, by its owner or by a thief.
 *
 * Each job has a byte of its own: a lost one leaves 0 there, one that was run twice 2. */
#include "test/help.h"

#include "threadpool_fork.h"

enum { DEEP = 100000 }; /* so many lie in the deque at once */

static _Atomic unsigned char *counted;
static threadpool_t *pool;
static long rounds;

static void count_me(threadpool_worker *w, void *arg) {
  (void)w;
  tp_add((_Atomic unsigned char *)arg, 1, relaxed); /* looked at after the end of all */
}

static uint64_t stolen(void) {
  return test_stats(pool).jobs_stolen;
}

static void fork_deep(threadpool_worker *w, void *arg) {
  (void)arg;
  threadpool_job *job = malloc(DEEP * sizeof *job);
  test_must(job != NULL);
  for (long r = 0; r < rounds; r++) {
    uint64_t before = stolen();
    for (long i = 0; i < DEEP; i++)
      threadpool_fork(w, &job[i], count_me, (void *)&counted[r * DEEP + i]);
    test_wait(stolen() > before); /* public jobs beside sleepers or searchers: one is taken */
    for (long i = DEEP; i-- > 0;) threadpool_sync(w, &job[i]);
  }
  free(job);
}

static void spawn_deep(threadpool_worker *w, void *arg) {
  (void)arg;
  for (long r = 0; r < rounds; r++) {
    uint64_t before = stolen();
    threadpool_scope scope;
    test_must(threadpool_scope_begin(w, &scope) == 0);
    for (long i = 0; i < DEEP; i++)
      test_must(threadpool_spawn(w, &scope, count_me, (void *)&counted[r * DEEP + i]) == 0);
    test_wait(stolen() > before);
    test_must(threadpool_scope_end(w, &scope) == 0);
  }
}

static void run_counted(threadpool_fn fn) {
  rounds = test_size(3, 100);
  counted = calloc((size_t)rounds, DEEP);
  assert_non_null((void *)counted);
  pool = test_pool((threadpool_options){.workers = 4});
  assert_int_equal(threadpool_call(pool, fn, NULL), 0);
  long wrong = 0;
  for (long i = 0; i < rounds * DEEP; i++) wrong += counted[i] != 1;
  free((void *)counted);
  assert_int_equal(wrong, 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void forks_of_one_deep_deque_run_exactly_once(void **state) {
  (void)state;
  run_counted(fork_deep);
}

static void spawns_of_one_deep_deque_run_exactly_once(void **state) {
  (void)state;
  run_counted(spawn_deep);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(forks_of_one_deep_deque_run_exactly_once),
      cmocka_unit_test(spawns_of_one_deep_deque_run_exactly_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
