/* test_handlers.c - what handlers have beyond arguments and results: wakers. */
#include <pthread.h>

#include "base/error.h"
#include "help.h"

static threadpool_t *pool;

static uint64_t submit(const char *json) {
  uint64_t id = threadpool_submit(pool, json);
  assert_true(id > 0);
  return id;
}
/* The status of its only entry. */
static int status_of(uint64_t id) {
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  assert_non_null(r);
  int status = r->status;
  threadpool_result_free(r);
  return status;
}
static void has(threadpool_handler h) {
  assert_int_equal(threadpool_register(pool, &h), 0);
}

/* --- wakers */

static _Atomic(threadpool_waker *) made;
static _Atomic int polls;
static int wait_to_be_woken(task_t *task, void **state) {
  tp_add(&polls, 1, relaxed);
  if (*state) return THREADPOOL_READY;
  *state = task;
  tp_store(&made, threadpool_waker_new(task), release);
  return THREADPOOL_PENDING;
}
static threadpool_waker *take_waker(void) {
  threadpool_waker *w;
  test_wait((w = tp_load(&made, acquire)));
  tp_store(&made, NULL, relaxed);
  return w;
}

/* Wrong: the waker points into memory that went with the pool (make asan). */
static void a_waker_outlives_its_task_and_its_pool(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 2, .drain_ms = -1});
  has((threadpool_handler){.name = "wait", .opcode = 100, .poll = wait_to_be_woken});
  tp_store(&polls, 0, relaxed);
  uint64_t id = submit("{\"op\": \"wait\"}");
  threadpool_waker *w = take_waker();
  test_wait(threadpool_status(pool, id) == THREADPOOL_WAITING);
  threadpool_wake(w);
  assert_int_equal(status_of(id), 0);
  threadpool_wake(w); /* it has ended */
  threadpool_wake(NULL);
  threadpool_waker_free(NULL);
  submit("{\"op\": \"wait\"}"); /* in the same record, and not woken by the first one's waker */
  threadpool_waker *other = take_waker();
  threadpool_wake(w);
  assert_int_equal(threadpool_shutdown(pool), 0); /* it is cancelled */
  assert_int_equal(tp_load(&polls, relaxed), 3);
  threadpool_wake(w);
  threadpool_wake(other);
  threadpool_waker_free(w);
  threadpool_waker_free(other);
}

static void *wake_on(void *arg) {
  for (int i = 0; i < 20000; i++) threadpool_wake(arg);
  return NULL;
}
static void a_waker_is_used_beside_a_shutdown(void **state) {
  (void)state;
  for (int round = 0; round < test_size(5, 50); round++) {
    pool = test_pool((threadpool_options){.workers = 1, .drain_ms = -1});
    has((threadpool_handler){.name = "wait", .opcode = 100, .poll = wait_to_be_woken});
    submit("{\"op\": \"wait\"}");
    threadpool_waker *w = take_waker();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_on, w), 0);
    assert_int_equal(threadpool_shutdown(pool), 0);
    pthread_join(thread, NULL);
    threadpool_waker_free(w);
  }
}

static _Atomic int final_status;
static void on_final(result_t *r, void *user_data) {
  (void)user_data;
  tp_store(&final_status, r->status, relaxed);
  threadpool_result_free(r);
}
static void *wake_when_closed(void *arg) {
  test_wait(threadpool_workers(pool) == 0); /* it takes no new calls */
  threadpool_wake(arg);
  return NULL;
}
/* A shutdown lets what was begun finish. Wrong: the wake is refused, and the request is cancelled. */
static void a_waker_works_while_the_pool_drains(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1, .drain_ms = 20000});
  has((threadpool_handler){.name = "wait", .opcode = 100, .poll = wait_to_be_woken});
  tp_store(&final_status, 1, relaxed);
  assert_true(threadpool_submit_with_callback(pool, "{\"op\": \"wait\"}", on_final, NULL) > 0);
  threadpool_waker *w = take_waker();
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wake_when_closed, w), 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
  pthread_join(thread, NULL);
  assert_int_equal(tp_load(&final_status, relaxed), 0);
  threadpool_waker_free(w);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_waker_outlives_its_task_and_its_pool),
      cmocka_unit_test(a_waker_is_used_beside_a_shutdown),
      cmocka_unit_test(a_waker_works_while_the_pool_drains),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
