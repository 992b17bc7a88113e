/* test_handlers.c - what handlers have beyond arguments and results: wakers, state, shields, registration. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "base/alloc.h"
#include "help.h"

static threadpool_t *pool;
static int *volatile nowhere = (int *)0x10; /* the compiler does not know */

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

/* --- the state of poll handlers */

enum { KEEP = 1, FREE = 2, CRASH = 3, WAIT = 4 };
static _Atomic int dropped, balance;

/* Keeps memory in *state; then does what its payload says, or waits. */
static int keep_state(task_t *task, void **state) {
  if (!*state) {
    *state = malloc(100);
    tp_add(&balance, 1, relaxed);
    return THREADPOOL_AGAIN;
  }
  const char *kind = threadpool_payload(task, NULL);
  switch (kind ? *kind : WAIT) {
  case WAIT: return THREADPOOL_PENDING;
  case CRASH: return *(volatile int *)nowhere;
  case FREE:
    free(*state);
    *state = NULL;
    tp_sub(&balance, 1, relaxed);
  }
  return THREADPOOL_READY;
}
static void drop_state(void *state) {
  free(state);
  tp_sub(&balance, 1, relaxed);
  tp_add(&dropped, 1, relaxed);
}
static void drop_and_crash(void *state) {
  drop_state(state);
  *(volatile int *)nowhere = 1;
}
static uint64_t submit_kind(uint32_t opcode, char kind) {
  threadpool_request q = {.opcode = opcode, .payload = &kind, .size = 1};
  uint64_t id;
  assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
  return id;
}

/* Wrong: `balance` is not 0 (leaked), or below (dropped twice; make asan). */
static void a_state_is_dropped_however_it_ends(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 2, .drain_ms = -1});
  threadpool_handler keep = {.name = "keep", .opcode = 100, .poll = keep_state, .drop = drop_state};
  has(keep);
  has((threadpool_handler){
      .name = "crash", .opcode = 101, .poll = keep_state, .drop = drop_and_crash});
  dropped = balance = 0;
  assert_int_equal(status_of(submit_kind(100, KEEP)), 0);
  assert_int_equal(dropped, 1);
  assert_int_equal(status_of(submit_kind(100, FREE)), 0);
  assert_int_equal(dropped, 1);
  assert_int_equal(status_of(submit_kind(100, CRASH)), ERR_HANDLER_CRASH);
  assert_int_equal(dropped, 2);
  uint64_t id = submit_kind(100, WAIT);
  test_wait(threadpool_status(pool, id) == THREADPOOL_WAITING);
  assert_int_equal(threadpool_cancel(pool, id), 1);
  assert_int_equal(status_of(id), ERR_CANCELLED);
  assert_int_equal(dropped, 3);
  assert_int_equal(status_of(submit("{\"op\": \"keep\", \"timeout_ms\": 5}")), ERR_TIMEOUT);
  assert_int_equal(balance, 0);
  dropped = 3; /* it may have ended before it had begun */
  /* Crashes in it, also after the handler has crashed. */
  for (char kind = KEEP; kind <= CRASH; kind += CRASH - KEEP) {
    result_t *r = threadpool_wait_result(pool, submit_kind(101, kind), UINT32_MAX);
    assert_int_equal(r->status, ERR_HANDLER_CRASH);
    assert_string_equal(r->error_msg, "handler crash crashed in its drop: SIGSEGV at address 0x10");
    threadpool_result_free(r);
  }
  assert_int_equal(dropped, 5);
  /* Cancelled at one moment or another, and by the shutdown. */
  for (int i = 0; i < test_size(200, 5000); i++) {
    id = submit_kind(100, WAIT);
    for (int k = i % 50; k > 0; k--) tp_pause();
    if (i % 100 == 99) continue;
    assert_int_equal(threadpool_cancel(pool, id), 1);
    assert_int_equal(status_of(id), ERR_CANCELLED);
    assert_true(balance <= 1 + i / 100);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
  assert_int_equal(balance, 0);
}

static void run_nothing(task_t *task) {
  (void)task;
}
static void drop_is_for_poll_handlers(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  threadpool_handler h = {.name = "x", .opcode = -1, .run = run_nothing, .drop = drop_state};
  assert_int_equal(threadpool_register(pool, &h), ERR_INVALID_ARGUMENT);
  assert_string_equal(threadpool_last_error(),
                      "handler x: drop is for the state of a poll handler");
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- shields */

static _Atomic int stage;
static void shield_too_much(task_t *task) {
  test_must(threadpool_unshield(task) == ERR_INVALID_ARGUMENT);
  test_must(strstr(threadpool_last_error(), "no shield") != NULL);
  for (int i = 0; i < 255; i++) test_must(threadpool_shield(task) == 0);
  test_must(threadpool_shield(task) == ERR_QUEUE_FULL);
  tp_store(&stage, 1, release);
  test_wait(tp_load(&stage, acquire) == 2); /* it was cancelled */
  for (int i = 0; i < 255; i++) {
    test_must(!threadpool_cancelled(task));
    test_must(threadpool_unshield(task) == 0);
  }
  test_must(threadpool_unshield(task) == ERR_INVALID_ARGUMENT);
  test_must(threadpool_cancelled(task));
}
/* Wrong: the depth runs over into what is beside it in the word, the references. */
static void shields_that_do_not_match_change_nothing(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  has((threadpool_handler){.name = "shield", .opcode = 100, .run = shield_too_much});
  tp_store(&stage, 0, relaxed);
  uint64_t id = submit("{\"op\": \"shield\"}");
  test_wait(tp_load(&stage, acquire) == 1);
  assert_int_equal(threadpool_cancel(pool, id), 1);
  tp_store(&stage, 2, release);
  assert_int_equal(status_of(id), ERR_CANCELLED);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- registration */

static void which(task_t *task) {
  const char *text = threadpool_user_data(task);
  test_must(threadpool_return_copy(task, text, strlen(text)) == 0);
}
static void gives(const char *json, const char *text) {
  result_t *r = threadpool_wait_result(pool, submit(json), UINT32_MAX);
  if (r->status) fail_msg("%s: %s", json, r->error_msg);
  assert_string_equal(r->data, text);
  threadpool_result_free(r);
}

static void an_operation_may_have_two_opcodes(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  has((threadpool_handler){.name = "twice", .opcode = 100, .run = which, .user_data = "x"});
  has((threadpool_handler){.name = "twice", .opcode = 101, .run = which, .user_data = "x"});
  gives("{\"opcode\": 100, \"op\": \"twice\"}", "x");
  gives("{\"opcode\": 101, \"op\": \"twice\"}", "x");
  result_t *r = threadpool_wait_result(pool, submit("{\"opcode\": 100, \"op\": \"echo\"}"), 60000);
  assert_int_equal(r->status, ERR_INVALID_JSON);
  assert_string_equal(r->error_msg, "opcode 100 is twice, but \"op\" says echo: give one of them");
  threadpool_result_free(r);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* O1, O2: nothing is allocated for what is known, and no table for what is replaced. */
static void replacing_takes_no_table(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  threadpool_handler h = {.name = "same", .opcode = 65535, .run = which, .user_data = "0"};
  has(h);
  tp_fail_at(2); /* the first is the operation itself */
  has(h);
  h.user_data = "1";
  tp_fail_at(2);
  has(h);
  assert_int_equal(tp_fail_left(), 1);
  tp_fail_at(2);
  h.opcode = 65534;
  has(h);
  assert_int_equal(tp_fail_left(), 1);
  tp_fail_at(0);
  gives("{\"op\": \"same\"}", "1");
  char name[20], json[60];
  for (int i = 0; i < 100; i++) { /* it grows */
    snprintf(name, sizeof name, "name%d", i);
    has((threadpool_handler){.name = name, .opcode = 600 * i, .run = which, .user_data = "2"});
  }
  for (int i = 0; i < 100; i++) {
    snprintf(json, sizeof json, "{\"op\": \"name%d\"}", i);
    gives(json, "2");
    snprintf(json, sizeof json, "{\"opcode\": %d}", 600 * i);
    gives(json, "2");
  }
  gives("{\"opcode\": 65535}", "1");
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static _Atomic bool stop;
static void *register_again(void *arg) {
  for (int i = 0; !tp_load(&stop, relaxed); i++) {
    char name[20];
    snprintf(name, sizeof name, "new%d", i % 500);
    threadpool_handler h[] = {
        {.name = "same", .opcode = 100, .run = which, .user_data = i % 2 ? "a" : "b"},
        {.name = name, .opcode = 200 + i % 1000, .run = which}};
    for (int k = 0; k < 2; k++) test_must(threadpool_register(arg, &h[k]) == 0);
  }
  return NULL;
}
/* Wrong: a request finds neither the old one nor the new one. */
static void an_operation_is_there_while_it_is_replaced(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  has((threadpool_handler){.name = "same", .opcode = 100, .run = which, .user_data = "a"});
  tp_store(&stop, false, relaxed);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, register_again, pool), 0);
  for (int i = 0; i < test_size(1000, 20000); i++)
    assert_int_equal(status_of(submit("{\"opcode\": 100, \"op\": \"same\"}")), 0);
  tp_store(&stop, true, relaxed);
  pthread_join(thread, NULL);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- results of others */

static void poll_another(task_t *task) {
  uint64_t id =
      threadpool_submit(threadpool_pool(task), "{\"op\": \"sleep\", \"args\": {\"ms\": 1}}");
  result_t *r;
  while (!(r = threadpool_wait_result(threadpool_pool(task), id, 0))) sched_yield();
  if (r->status) threadpool_fail(task, r->status, "%s", r->error_msg);
  threadpool_result_free(r);
}
/* Wrong: it gives its seat away, each time. */
static void a_wait_of_no_time_keeps_the_seat(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 2});
  has((threadpool_handler){.name = "poll", .opcode = 100, .run = poll_another});
  assert_int_equal(status_of(submit("{\"op\": \"poll\"}")), 0);
  assert_int_equal(test_stats(pool).substitutes, 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_waker_outlives_its_task_and_its_pool),
      cmocka_unit_test(a_waker_is_used_beside_a_shutdown),
      cmocka_unit_test(a_waker_works_while_the_pool_drains),
      cmocka_unit_test(a_state_is_dropped_however_it_ends),
      cmocka_unit_test(drop_is_for_poll_handlers),
      cmocka_unit_test(shields_that_do_not_match_change_nothing),
      cmocka_unit_test(an_operation_may_have_two_opcodes),
      cmocka_unit_test(replacing_takes_no_table),
      cmocka_unit_test(an_operation_is_there_while_it_is_replaced),
      cmocka_unit_test(a_wait_of_no_time_keeps_the_seat),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
