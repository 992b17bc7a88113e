/* test_calls.c - a call's beginning and end at awkward moments: cancelled while it starts, waits that would never end. */
#include <pthread.h>
#include <stdio.h>

#include "base/alloc.h"
#include "help.h"
#include "pool/calls.h"

static threadpool_t *pool;

static uint64_t submit(const char *json) {
  uint64_t id = threadpool_submit(pool, json);
  assert_true(id > 0);
  return id;
}
/* Its only entry. */
static result_t *entry_of(uint64_t id) {
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  assert_non_null(r);
  return r;
}
static int status_of(uint64_t id) {
  result_t *r = entry_of(id);
  int status = r->status;
  threadpool_result_free(r);
  return status;
}

/* --- cancelled while it starts */

enum { FAILURES = TP_GET_TRIES - 1 };
static _Atomic uint64_t next_id;
static _Atomic int step;
/* Cancels a request before its submitter has its id; then its record is used again. */
static void *cancel_at_once(void *arg) {
  (void)arg;
  uint64_t id =
      threadpool_submit(pool, "{\"op\": \"echo\"}"); /* so that it has memory for a record */
  threadpool_result_free(threadpool_wait_result(pool, id, UINT32_MAX));
  tp_store(&step, 1, release);
  test_wait(tp_load(&step, acquire) == 2 && tp_fail_left() < FAILURES);
  id = tp_load(&next_id, relaxed);
  test_must(threadpool_cancel(pool, id) == 1);
  result_t *r = NULL;
  test_wait((r = threadpool_poll_result(pool, id)));
  test_must(r->status == ERR_CANCELLED);
  threadpool_result_free(r);
  test_wait(tp_load(&step, acquire) == 3);
  id = threadpool_submit(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 60}}");
  test_must((uint32_t)id % TP_SLAB_MAX_RECORDS ==
            (uint32_t)tp_load(&next_id, relaxed) % TP_SLAB_MAX_RECORDS);
  r = threadpool_wait_result(pool, id, UINT32_MAX);
  test_must(r->status == 0);
  threadpool_result_free(r);
  return NULL;
}
/* Its deadline takes some 4 ms to begin, since there is no thread for the reactor at first. Wrong: it ends meanwhile, and
 * the timer is started in a record that is somebody else's by then; when it fires the process dies. */
static void a_request_is_cancelled_while_its_deadline_begins(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  uint64_t id = submit("{\"op\": \"echo\"}");
  assert_int_equal(status_of(id), 0);
  tp_store(&next_id, id + TP_SLAB_GENERATION, relaxed);
  tp_store(&step, 0, relaxed);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, cancel_at_once, NULL), 0);
  test_wait(tp_load(&step, acquire) == 1);
  tp_fail_run(1, FAILURES);
  tp_store(&step, 2, release);
  assert_int_equal(submit("{\"op\": \"sleep\", \"args\": {\"ms\": 60000}, \"timeout_ms\": 50}"),
                   next_id);
  tp_store(&step, 3, release);
  pthread_join(thread, NULL);
  assert_int_equal(tp_fail_left(), 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- waits that would never end */

static _Atomic int emitted;
static void emit_shielded(task_t *task) {
  test_must(threadpool_shield(task) == 0);
  int error;
  while (!(error = threadpool_emit(task, "x", 1))) tp_add(&emitted, 1, release);
  test_must(error == ERR_CANCELLED);
  test_must(threadpool_unshield(task) == 0);
}
static int poll_shielded(task_t *task, void **state) {
  if (!*state) test_must(threadpool_shield(task) == 0);
  *state = task;
  int error;
  while (!(error = threadpool_emit(task, "x", 1))) tp_add(&emitted, 1, release);
  if (error == ERR_QUEUE_FULL) return THREADPOOL_PENDING;
  test_must(error == ERR_CANCELLED);
  test_must(threadpool_unshield(task) == 0);
  return THREADPOOL_READY;
}
/* A handler waits, without limit, for the request that its payload points to. */
typedef struct wait_for {
  threadpool_t *pool;
  _Atomic uint64_t id;
  bool shielded;
} wait_for;
static _Atomic int waiting;
static void wait_inside(task_t *task) {
  wait_for *p;
  memcpy(&p, threadpool_payload(task, NULL), sizeof p);
  if (p->shielded) test_must(threadpool_shield(task) == 0);
  uint64_t id;
  test_wait((id = tp_load(&p->id, acquire)) > 0);
  tp_add(&waiting, 1, relaxed);
  result_t *r = threadpool_wait_result(p->pool, id, UINT32_MAX);
  if (p->shielded) test_must(threadpool_unshield(task) == 0);
  if (r->status) threadpool_fail(task, r->status, "%s", r->error_msg);
  threadpool_result_free(r);
}
static uint64_t submit_wait(threadpool_t *in, wait_for *w, bool blocking) {
  threadpool_request q = {.opcode = blocking ? 101 : 100, .payload = &w, .size = sizeof w};
  uint64_t id;
  assert_int_equal(threadpool_submit_batch(in, &q, 1, &id), 1);
  return id;
}
static threadpool_t *waiting_pool(int drain_ms) {
  threadpool_t *p = test_pool((threadpool_options){.workers = 2, .drain_ms = drain_ms});
  threadpool_handler h[] = {{.name = "wait", .opcode = 100, .run = wait_inside},
                            {.name = "block", .opcode = 101, .run = wait_inside, .blocking = true}};
  for (int i = 0; i < 2; i++) assert_int_equal(threadpool_register(p, &h[i]), 0);
  waiting = 0;
  return p;
}
static void fails(uint64_t id, int status, const char *message) {
  result_t *r = entry_of(id);
  if (r->status != status || (message && strcmp(r->error_msg, message) != 0))
    fail_msg("%d %s", r->status, r->error_msg);
  threadpool_result_free(r);
}

/* Wrong (all of these): it waits for ever. */
static void a_handler_does_not_wait_for_itself(void **state) {
  (void)state;
  pool = waiting_pool(0);
  for (int blocking = 0; blocking < 2; blocking++) {
    wait_for w = {.pool = pool};
    uint64_t id = submit_wait(pool, &w, blocking);
    tp_store(&w.id, id, release);
    fails(id, ERR_WRONG_THREAD, "a handler waits for the result of its own request");
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}
static void a_handler_that_waits_can_be_cancelled(void **state) {
  (void)state;
  static const char forever[] = "{\"op\": \"sleep\", \"args\": {\"ms\": 4000000000}}";
  for (int i = 0; i < test_size(20, 200); i++) {
    pool = waiting_pool(0);
    wait_for w = {.pool = pool, .id = submit(forever)};
    uint64_t id = submit_wait(pool, &w, i % 2);
    if (i % 4 < 2) test_wait(tp_load(&waiting, relaxed) == 1);
    for (int k = i % 50; k > 0; k--) tp_pause();
    assert_int_equal(threadpool_cancel(pool, id), 1);
    fails(id, ERR_CANCELLED, NULL);
    /* By its own timeout. */
    wait_for *p = &w;
    threadpool_request q = {
        .opcode = 100, .payload = &p, .size = sizeof p, .timeout_ms = 1 + (uint32_t)i % 3};
    assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
    fails(id, ERR_TIMEOUT, NULL);
    assert_int_equal(threadpool_cancel(pool, w.id), 1);
    fails(w.id, ERR_CANCELLED, NULL);
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}
static void handlers_that_wait_in_a_circle_end(void **state) {
  (void)state;
  for (int shielded = 0; shielded < 2; shielded++)
    for (int shut = 0; shut < 2; shut++)
      for (int pools = 1; pools <= 2; pools++) {
        pool = waiting_pool(-1);
        threadpool_t *other = pools == 1 ? pool : waiting_pool(-1);
        wait_for a = {.pool = other, .shielded = shielded},
                 b = {.pool = pool, .shielded = shielded};
        uint64_t first = submit_wait(pool, &a, false), second = submit_wait(other, &b, true);
        tp_store(&a.id, second, release);
        tp_store(&b.id, first, release);
        test_wait(tp_load(&waiting, relaxed) == 2);
        if (!shut && !shielded) {
          assert_int_equal(threadpool_cancel(pool, first), 1);
          result_t *r;
          test_wait((r = threadpool_poll_result(other, second)));
          assert_int_equal(r->status, ERR_CANCELLED);
          threadpool_result_free(r);
        }
        assert_int_equal(threadpool_shutdown(pool), 0);
        if (pools == 2) assert_int_equal(threadpool_shutdown(other), 0);
      }
}

/* Nobody fetches. Wrong: the shutdown never ends. */
static void a_shield_at_a_full_window_does_not_hold_a_shutdown_up(void **state) {
  (void)state;
  enum { WINDOW = 3 };
  for (int cancelled = 0; cancelled < 2; cancelled++)
    for (int deliver = THREADPOOL_BY_ID; deliver <= THREADPOOL_BY_QUEUE; deliver += 2)
      for (int credited = 0; credited < 2; credited++) {
        pool = test_pool((threadpool_options){.workers = 2, .drain_ms = 1, .window = WINDOW});
        threadpool_handler h[] = {
            {.name = "plain", .opcode = 100, .run = emit_shielded},
            {.name = "polled", .opcode = 101, .poll = poll_shielded},
            {.name = "blocking", .opcode = 102, .run = emit_shielded, .blocking = true}};
        emitted = 0;
        for (uint32_t i = 0; i < 3; i++) {
          assert_int_equal(threadpool_register(pool, &h[i]), 0);
          threadpool_request q = {.opcode = 100 + i, .deliver = deliver, .credited = credited};
          uint64_t id;
          assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
          test_wait(tp_load(&emitted, acquire) == WINDOW * (int)(i + 1));
          if (cancelled) assert_int_equal(threadpool_cancel(pool, id), 1);
        }
        assert_int_equal(threadpool_shutdown(pool), 0);
      }
}

/* --- arguments as text */

static void print_two(task_t *task) {
  size_t length[3];
  const char *text[3] = {threadpool_arg_json(task, "a", &length[0]),
                         threadpool_arg_json(task, "b", &length[1]),
                         threadpool_arg_json(task, NULL, &length[2])};
  for (int i = 0; i < 3; i++) test_must(text[i] && strlen(text[i]) == length[i]);
  test_must(text[0][1] == 'a' && text[1][1] == 'b');
  test_must(length[2] == length[0] + length[1] + strlen("{'a':,'b':}"));
  test_must(!threadpool_arg_json(task, "c", NULL));
}
static void print_twice(task_t *task) {
  const char *text[2];
  for (int i = 0; i < 2; i++) text[i] = threadpool_arg_json(task, NULL, NULL);
  if (text[0] && text[1]) test_must(strcmp(text[0], text[1]) == 0);
}
/* Wrong: each text goes when the next one is asked for (make asan), or stays when the task has ended (the same). */
static void raw_arguments_live_as_long_as_the_task(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  threadpool_handler h[] = {{.name = "two", .opcode = -1, .run = print_two},
                            {.name = "twice", .opcode = -1, .run = print_twice}};
  for (int i = 0; i < 2; i++) assert_int_equal(threadpool_register(pool, &h[i]), 0);
  static char json[20000], a[8000], b[8000];
  for (int size = 10; size < 8000; size *= 5) {
    snprintf(a, (size_t)size, "%0*d", size - 1, 0);
    snprintf(b, (size_t)size, "%0*d", size - 1, 0);
    memset(a, 'a', strlen(a));
    memset(b, 'b', strlen(b));
    snprintf(json, sizeof json, "{\"op\": \"two\", \"args\": {\"a\": \"%s\", \"b\": \"%s\"}}", a,
             b);
    assert_int_equal(status_of(submit(json)), 0);
  }
  snprintf(json, sizeof json, "{\"op\": \"twice\", \"args\": {\"a\": \"%s\"}}", a);
  for (int nth = 1; nth < 10; nth++) { /* without memory: nothing leaks */
    tp_fail_run(nth, TP_GET_TRIES);
    uint64_t id = threadpool_submit(pool, json);
    if (id) threadpool_result_free(entry_of(id));
    tp_fail_at(0);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_request_is_cancelled_while_its_deadline_begins),
      cmocka_unit_test(a_handler_does_not_wait_for_itself),
      cmocka_unit_test(a_handler_that_waits_can_be_cancelled),
      cmocka_unit_test(handlers_that_wait_in_a_circle_end),
      cmocka_unit_test(a_shield_at_a_full_window_does_not_hold_a_shutdown_up),
      cmocka_unit_test(raw_arguments_live_as_long_as_the_task),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
