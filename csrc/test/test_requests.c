/* test_requests.c - requests from their text to their results: decoding, delivery, streams, cancellation, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "help.h"
#include "pool/calls.h"

static threadpool_t *pool;

static void begin(threadpool_options o) {
  int error = 1;
  pool = threadpool_create_with(&o, &error);
  assert_non_null(pool);
  assert_int_equal(error, 0);
}
static void end(void) {
  assert_int_equal(threadpool_shutdown(pool), 0);
}
static result_t *wait_for(uint64_t id) {
  assert_true(id > 0 && id < 1ull << 53);
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  assert_non_null(r);
  assert_true(r->task_id == id);
  return r;
}
/* The only entry of this request: its status, and its data or message. */
static void gives(const char *json, int status, const char *text) {
  result_t *r = wait_for(threadpool_submit(pool, json));
  if (r->status != status) fail_msg("%s: %d %s", json, r->status, r->error_msg);
  assert_int_equal(r->flags, RESULT_FINAL);
  if (status < 0)
    assert_string_equal(r->error_msg, text);
  else if (text)
    assert_string_equal(r->data, text);
  else
    assert_null(r->data);
  threadpool_result_free(r);
}

/* --- decoding */

static void a_request_is_decoded_strictly(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2, .max_depth = 20, .max_request_bytes = 1000});
  gives("{\"op\": \"echo\", \"args\": {\"a\": [1, \"x\"]}}", 0, "{\"a\":[1,\"x\"]}");
  gives("{\"opcode\": 8, \"op\": \"echo\", \"args\": {}, \"tag\": \"t\", \"priority\": \"low\"}", 0,
        "{}");
  gives("{\"op\": \"echo\"}", 0, NULL);
  gives("", ERR_INVALID_JSON, "not JSON: input length is 0 at byte 0");
  gives("{\"opcode\": 8,}", ERR_INVALID_JSON, "not JSON: trailing comma is not allowed at byte 12");
  gives("[1]", ERR_INVALID_JSON, "expected an object, got array");
  gives("{}", ERR_INVALID_JSON, "no operation: expected a member \"opcode\" or \"op\"");
  gives(
      "{\"op\": \"echo\", \"colour\": 1}", ERR_INVALID_JSON,
      "unknown member \"colour\": expected opcode, op, args, task_id, priority, timeout_ms or tag");
  gives("{\"op\": \"echo\", \"op\": \"echo\"}", ERR_INVALID_JSON, "member \"op\" is given twice");
  gives("{\"opcode\": \"8\"}", ERR_INVALID_JSON,
        "member \"opcode\": expected a whole number from 0 to 65535, got \"8\"");
  gives("{\"opcode\": 65536}", ERR_INVALID_JSON,
        "member \"opcode\": expected a whole number from 0 to 65535, got 65536");
  gives("{\"op\": \"echo\", \"args\": []}", ERR_INVALID_JSON,
        "member \"args\": expected an object, got array");
  gives("{\"op\": \"echo\", \"priority\": \"urgent\"}", ERR_INVALID_JSON,
        "member \"priority\": expected \"high\", \"normal\" or \"low\", got \"urgent\"");
  gives("{\"op\": \"echo\", \"timeout_ms\": -1}", ERR_INVALID_JSON,
        "member \"timeout_ms\": expected a whole number from 0 to 4294967295, got -1");
  gives("{\"op\": \"dance\"}", ERR_UNKNOWN_OPCODE,
        "unknown operation: \"dance\": known are those of config/config and what "
        "threadpool_register has added");
  gives("{\"opcode\": 999}", ERR_UNKNOWN_OPCODE,
        "unknown opcode: 999: known are those of config/config and what threadpool_register has "
        "added");
  gives("{\"opcode\": 0}", ERR_UNKNOWN_OPCODE,
        "updater: opcode 0 is reserved: no request can ask for it");
  gives("{\"opcode\": 1}", ERR_UNKNOWN_OPCODE, "http_get: HTTP is not part of this build");
  gives("{\"opcode\": 7, \"op\": \"echo\"}", ERR_INVALID_JSON,
        "opcode 7 is sleep, but \"op\" says echo: give one of them");
  gives("{\"op\": \"echo\", \"args\": {\"a\": [[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]}}",
        ERR_INVALID_JSON, "nested too deep: expected at most 20 levels (max_depth)");
  char large[1100];
  memset(large, ' ', sizeof large - 1);
  large[sizeof large - 1] = '\0';
  gives(large, ERR_INVALID_JSON,
        "the request has 1099 bytes: expected at most 1000 (max_request_bytes)");
  end();
}

static void the_outer_id_comes_back(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  const char *json[] = {"{\"op\": \"echo\", \"task_id\": 18446744073709551615}",
                        "{\"op\": \"echo\", \"task_id\": \"18446744073709551615\"}",
                        "{\"op\": \"no\", \"task_id\": 18446744073709551615}"};
  for (int i = 0; i < 3; i++) {
    result_t *r = wait_for(threadpool_submit(pool, json[i]));
    assert_true(r->outer_id == UINT64_MAX);
    threadpool_result_free(r);
  }
  gives("{\"op\": \"echo\", \"task_id\": \"18446744073709551616\"}", ERR_INVALID_JSON,
        "member \"task_id\": expected a whole number from 0 to 18446744073709551615, or a string "
        "of its digits, got "
        "\"18446744073709551616\"");
  end();
}

/* Wrong: the polling loop of a program never ends. */
static void an_unknown_id_gets_an_error(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\"}");
  threadpool_result_free(wait_for(id));
  const uint64_t ids[] = {0, 1, id, id + (1ull << 26), UINT64_MAX};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
    result_t *r = threadpool_poll_result(pool, ids[i]);
    assert_non_null(r);
    assert_int_equal(r->status, ERR_INVALID_ARGUMENT);
    threadpool_result_free(r);
    assert_int_equal(threadpool_cancel(pool, ids[i]), ERR_INVALID_ARGUMENT);
    assert_int_equal(threadpool_status(pool, ids[i]), ERR_INVALID_ARGUMENT);
  }
  assert_true(threadpool_submit(NULL, "{}") == 0);
  assert_true(threadpool_submit(pool, NULL) == 0);
  assert_true(strlen(threadpool_last_error()) > 0);
  end();
  result_t *r = threadpool_poll_result(pool, id); /* the pool is closed */
  assert_int_equal(r->status, ERR_SHUTDOWN);
  threadpool_result_free(r);
}

/* --- streams */

static void partial_results_come_in_order_then_one_final(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2, .window = 2});
  uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\", \"task_id\": 9, \"args\": {\"parts\": "
                                        "[\"a\", \"b\", \"\", \"d\", \"e\", \"f\", \"g\"]}}");
  const char *parts[] = {"a", "b", "", "d", "e", "f", "g"};
  for (uint64_t i = 0; i < 7; i++) {
    result_t *r = wait_for(id);
    assert_int_equal(r->flags, RESULT_PARTIAL);
    assert_true(r->sequence == i && r->outer_id == 9);
    assert_string_equal(r->data, parts[i]);
    threadpool_result_free(r);
  }
  result_t *r = wait_for(id);
  assert_int_equal(r->flags, RESULT_FINAL);
  assert_true(r->sequence == 7 && r->status == 0);
  threadpool_result_free(r);
  end();
}

static void a_part_that_is_no_string_is_named(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1, .window = 1});
  gives("{\"op\": \"echo\", \"args\": {\"parts\": []}}", 0, NULL);
  gives("{\"op\": \"echo\", \"args\": {\"parts\": {}}}", ERR_INVALID_ARGUMENT,
        "argument \"parts\": expected an array of strings, got object");
  uint64_t id = threadpool_submit(
      pool, "{\"op\": \"echo\", \"args\": {\"parts\": [\"a\", \"b\", [\"c\"], \"d\"]}}");
  for (int i = 0; i < 2; i++) {
    result_t *r = wait_for(id);
    assert_string_equal(r->data, i ? "b" : "a");
    threadpool_result_free(r);
  }
  result_t *r = wait_for(id);
  assert_int_equal(r->status, ERR_INVALID_ARGUMENT);
  assert_string_equal(r->error_msg, "argument \"parts\": item 2: expected a string, got array");
  threadpool_result_free(r);
  end();
}

enum { EMITTED = 50 };
static void emit_many(task_t *task) {
  for (int i = 0; i < EMITTED; i++)
    if (threadpool_emit(task, &i, sizeof i) != 0) return;
}
/* A plain handler waits at a full window; other work goes on meanwhile on the only worker. */
static void a_plain_handler_waits_at_a_full_window(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1, .window = 3});
  threadpool_handler h = {.name = "many", .opcode = 100, .run = emit_many};
  assert_int_equal(threadpool_register(pool, &h), 0);
  uint64_t id = threadpool_submit(pool, "{\"opcode\": 100}");
  for (int i = 0; i < EMITTED; i++) {
    gives("{\"op\": \"echo\"}", 0, NULL);
    result_t *r = wait_for(id);
    assert_int_equal(*(int *)r->data, i);
    threadpool_result_free(r);
  }
  result_t *r = wait_for(id);
  assert_int_equal(r->flags, RESULT_FINAL);
  threadpool_result_free(r);
  /* One that nobody reads, and one that is cancelled at the window. */
  assert_int_equal(threadpool_detach(pool, threadpool_submit(pool, "{\"opcode\": 100}")), 0);
  id = threadpool_submit(pool, "{\"opcode\": 100}");
  threadpool_result_free(wait_for(id));
  assert_int_equal(threadpool_cancel(pool, id), 1);
  while ((r = wait_for(id))->flags == RESULT_PARTIAL) threadpool_result_free(r);
  threadpool_result_free(r);
  uint64_t left = threadpool_submit(pool, "{\"opcode\": 100}"); /* for the shutdown */
  assert_true(left > 0);
  end();
}

/* What emit said when the window was full, while it was not asked to end. */
static _Atomic int told[2];
static void emit_until_told(task_t *task) {
  int error;
  while (!(error = threadpool_emit(task, "x", 1))) continue;
  if (!threadpool_cancelled(task)) tp_store(&told[0], error, relaxed);
}
static int poll_until_told(task_t *task, void **state) {
  (void)state;
  int error;
  while (!(error = threadpool_emit(task, "x", 1))) continue;
  if (error == ERR_QUEUE_FULL) return THREADPOOL_PENDING;
  if (!threadpool_cancelled(task)) tp_store(&told[1], error, relaxed);
  return THREADPOOL_READY;
}
/* Nobody can fetch any more. Wrong: the shutdown waits for who waits for room, and cancels in the end. */
static void a_full_window_does_not_hold_a_shutdown_up(void **state) {
  (void)state;
  for (int deliver = THREADPOOL_BY_ID; deliver <= THREADPOOL_BY_QUEUE; deliver += 2)
    for (int waits = 0; waits < 2; waits++) {
      begin((threadpool_options){.workers = 2, .window = 3, .drain_ms = 20000});
      threadpool_handler h[] = {{.name = "plain", .opcode = 100, .run = emit_until_told},
                                {.name = "polled", .opcode = 101, .poll = poll_until_told}};
      told[0] = told[1] = 0;
      uint64_t id[2];
      for (int i = 0; i < 2; i++) {
        assert_int_equal(threadpool_register(pool, &h[i]), 0);
        threadpool_request q = {.opcode = 100 + (uint32_t)i, .deliver = deliver};
        assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id[i]), 1);
      }
      if (waits) test_wait(threadpool_status(pool, id[1]) == THREADPOOL_WAITING);
      if (waits) test_wait(test_stats(pool).substitutes > 0);
      end();
      for (int i = 0; i < 2; i++) assert_int_equal(told[i], ERR_CANCELLED);
    }
}

/* --- delivery */

static _Atomic int called, finals;
static void count_result(result_t *r, void *user_data) {
  test_must(user_data == &called);
  tp_add(&called, 1, relaxed);
  if (r->flags & RESULT_FINAL) tp_add(&finals, 1, release);
  threadpool_result_free(r);
}
static void callbacks_get_every_entry(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2});
  called = finals = 0;
  for (int i = 0; i < 100; i++)
    assert_true(threadpool_submit_with_callback(
                    pool,
                    i % 2 ? "{\"op\": \"echo\", \"args\": {\"parts\": [\"a\", \"b\"]}}" : "no JSON",
                    count_result, (void *)&called) > 0);
  test_wait(tp_load(&finals, acquire) == 100);
  assert_int_equal(called, 50 * 3 + 50);
  end();
}

static void completions_come_in_batches(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2});
  enum { N = 1000 };
  int fd = -1, seen = 0, last[2] = {0, 0};
  uint64_t ids[N];
  threadpool_request q[N];
  for (int i = 0; i < N; i++)
    q[i] = (threadpool_request){.json = "{\"op\": \"echo\", \"args\": {\"parts\": [\"x\", \"y\"]}}",
                                .deliver = THREADPOOL_BY_QUEUE};
  assert_int_equal(threadpool_submit_batch(pool, q, N / 2, ids), N / 2);
  fd = threadpool_event_fd(pool);
  assert_true(fd >= 0);
  assert_int_equal(threadpool_event_fd(pool), fd);
  assert_int_equal(threadpool_submit_batch(pool, q, N / 2, ids + N / 2), N / 2);
  while (seen < 3 * N) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 60000), 1);
    result_t *r[64];
    size_t n = threadpool_completions(pool, r, 64);
    for (size_t i = 0; i < n; i++, seen++) {
      last[r[i]->flags == RESULT_FINAL]++;
      threadpool_result_free(r[i]);
    }
  }
  assert_int_equal(last[0], 2 * N);
  assert_int_equal(last[1], N);
  result_t *none;
  assert_int_equal(threadpool_completions(pool, &none, 1), 0);
  struct pollfd p = {.fd = fd, .events = POLLIN};
  assert_int_equal(poll(&p, 1, 0), 0);
  end();
}

/* A stream whose entries come one by one: part i when `gate` is above i, then the end. */
enum { PARTS = 3, ENTRIES = PARTS + 1 };
static _Atomic int gate, sent;
static void emit_at_the_gate(task_t *task) {
  for (int i = 0; i < PARTS; i++) {
    test_wait(tp_load(&gate, acquire) > i);
    if (threadpool_emit(task, &i, sizeof i) != 0) return;
    tp_store(&sent, i + 1, release);
  }
  test_wait(tp_load(&gate, acquire) > PARTS);
}
static _Atomic bool held;
static void hold_the_worker(task_t *task) {
  (void)task;
  test_wait(!tp_load(&held, acquire));
}

/* Let a stream bring `come` entries (-1: it has not begun), and fetch the first ones. Its id. */
static uint64_t stream_until(int come, int fetched, uint64_t *holder) {
  tp_store(&gate, come < 0 ? 0 : come, relaxed);
  tp_store(&sent, 0, relaxed);
  tp_store(&held, come < 0, relaxed);
  *holder = threadpool_submit(pool, "{\"opcode\": 101}");
  threadpool_request q = {.opcode = 100, .deliver = THREADPOOL_BY_QUEUE};
  uint64_t id;
  assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
  int status = come < 0 ? THREADPOOL_QUEUED : come < ENTRIES ? THREADPOOL_RUNNING : THREADPOOL_DONE;
  test_wait(threadpool_status(pool, id) == status);
  if (come >= 0 && come < ENTRIES) test_wait(tp_load(&sent, acquire) == come);
  for (int i = 0; i < fetched; i++) {
    result_t *r = NULL;
    test_wait(threadpool_completions(pool, &r, 1) == 1);
    assert_true(r->task_id == id && r->sequence == (uint64_t)i);
    threadpool_result_free(r);
  }
  return id;
}
static void let_it_end(uint64_t id, uint64_t holder) {
  tp_store(&held, false, release);
  tp_store(&gate, ENTRIES, release);
  threadpool_result_free(wait_for(holder));
  int status;
  test_wait((status = threadpool_status(pool, id)) == THREADPOOL_DONE || status < 0);
  gives("{\"op\": \"echo\"}", 0,
        NULL); /* the only worker has done what came before: it is in the queue */
}

/* Before, between and after its entries. Wrong: an entry comes all the same, or what is discarded counts for ever. */
static void a_stream_to_the_queue_is_detached(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  threadpool_handler h[] = {{.name = "stream", .opcode = 100, .run = emit_at_the_gate},
                            {.name = "hold", .opcode = 101, .run = hold_the_worker}};
  for (int i = 0; i < 2; i++) assert_int_equal(threadpool_register(pool, &h[i]), 0);
  for (int come = -1; come <= ENTRIES; come++)
    for (int fetched = 0; fetched == 0 || fetched <= come; fetched++) {
      uint64_t holder, id = stream_until(come, fetched, &holder);
      assert_int_equal(threadpool_detach(pool, id), fetched < ENTRIES ? 0 : ERR_INVALID_ARGUMENT);
      let_it_end(id, holder);
      result_t *r;
      assert_int_equal(threadpool_completions(pool, &r, 1), 0);
      assert_int_equal(threadpool_status(pool, id), ERR_INVALID_ARGUMENT);
      assert_int_equal(tp_load(&pool->requests->pending, relaxed), 0);
    }
  end();
}

/* The same; after its last part the handler does not ask any more. Wrong: its final entry is missing, comes twice, or not
 * last. */
static void a_stream_to_the_queue_is_cancelled(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  threadpool_handler h[] = {{.name = "stream", .opcode = 100, .run = emit_at_the_gate},
                            {.name = "hold", .opcode = 101, .run = hold_the_worker}};
  for (int i = 0; i < 2; i++) assert_int_equal(threadpool_register(pool, &h[i]), 0);
  for (int come = -1; come <= ENTRIES; come++)
    for (int fetched = 0; fetched == 0 || fetched <= come; fetched++) {
      uint64_t holder, id = stream_until(come, fetched, &holder);
      int answer = come < ENTRIES ? 1 : fetched < ENTRIES ? 0 : ERR_INVALID_ARGUMENT;
      assert_int_equal(threadpool_cancel(pool, id), answer);
      let_it_end(id, holder);
      result_t *r[ENTRIES + 1];
      int left = (come < 0 ? 1 : come < ENTRIES ? come + 1 : ENTRIES) - fetched;
      assert_int_equal(threadpool_completions(pool, r, ENTRIES + 1), left);
      for (int i = 0; i < left; i++) {
        assert_true(r[i]->sequence == (uint64_t)(fetched + i));
        assert_int_equal(r[i]->flags, i + 1 < left ? RESULT_PARTIAL : RESULT_FINAL);
        if (i + 1 == left) assert_int_equal(r[i]->status, come < PARTS ? ERR_CANCELLED : 0);
        threadpool_result_free(r[i]);
      }
      assert_int_equal(tp_load(&pool->requests->pending, relaxed), 0);
    }
  end();
}

/* --- cancellation, timeouts, limits */

static void timeouts_and_cancellation_end_a_request(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  gives("{\"op\": \"sleep\", \"args\": {\"ms\": 60000}, \"timeout_ms\": 5}", ERR_TIMEOUT,
        "timed out");
  gives("{\"op\": \"sleep\", \"args\": {\"ms\": 1}, \"timeout_ms\": 60000}", 0, NULL);
  gives("{\"op\": \"sleep\"}", ERR_INVALID_ARGUMENT,
        "argument \"ms\": expected a whole number from 0 to 4294967295");
  uint64_t id = threadpool_submit(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 60000}}");
  test_wait(threadpool_status(pool, id) == THREADPOOL_WAITING);
  assert_null(threadpool_poll_result(pool, id));
  assert_null(threadpool_wait_result(pool, id, 1));
  assert_int_equal(threadpool_cancel(pool, id), 1);
  result_t *r = wait_for(id);
  assert_int_equal(r->status, ERR_CANCELLED);
  threadpool_result_free(r);
  end();
}

static void max_pending_bounds_what_is_not_fetched(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1, .max_pending = 10});
  uint64_t id[10];
  for (int i = 0; i < 10; i++)
    assert_true((id[i] = threadpool_submit(pool, i % 2 ? "bad" : "{\"op\": \"echo\"}")) > 0);
  assert_true(threadpool_submit(pool, "{\"op\": \"echo\"}") == 0);
  assert_non_null(strstr(threadpool_last_error(), "max_pending"));
  for (int i = 0; i < 10; i++) {
    threadpool_result_free(wait_for(id[i]));
    id[i] = threadpool_submit(pool, "{\"op\": \"echo\"}");
    assert_true(id[i] > 0);
  }
  assert_int_equal(threadpool_detach(pool, id[0]), 0);
  end(); /* the others are never fetched */
}

/* A result lives until it is freed, also without its pool. */
static void results_outlive_their_pool(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  result_t *r[3];
  for (int i = 0; i < 3; i++)
    r[i] = wait_for(threadpool_submit(pool, "{\"op\": \"echo\", \"args\": {\"n\": 1}}"));
  threadpool_result_free(r[1]);
  end();
  assert_string_equal(r[0]->data, "{\"n\":1}");
  threadpool_result_free(r[0]);
  threadpool_result_free(r[2]);
}

/* --- operations */

static void memory_is_read_and_written_by_name(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  char buffer[16] = "................";
  assert_int_equal(symbol_register(threadpool_symbols(pool), "b", buffer, sizeof buffer), 0);
  gives("{\"opcode\": 3, \"args\": {\"write_to\": \"b\", \"data\": \"Hello\", \"offset\": 2}}", 0,
        NULL);
  gives("{\"opcode\": 4, \"args\": {\"read_from\": \"b\", \"offset\": 1, \"length\": 7}}", 0,
        ".Hello.");
  gives("{\"opcode\": 3, \"args\": {\"write_to\": \"b\", \"data\": \"Hello\", \"offset\": 12}}",
        ERR_INVALID_ARGUMENT, "offset 12 and length 5: the region has 16 bytes");
  gives("{\"opcode\": 4, \"args\": {\"read_from\": \"b\", \"offset\": 16, \"length\": "
        "18446744073709551615}}",
        ERR_INVALID_ARGUMENT, "offset 16 and length 18446744073709551615: the region has 16 bytes");
  gives("{\"opcode\": 4, \"args\": {\"read_from\": \"c\"}}", ERR_SYMBOL_NOT_FOUND,
        "unknown symbol: c");
  assert_int_equal(symbol_unregister(threadpool_symbols(pool), "b"), 0);
  end();
}

static void files_are_read_and_written(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  char directory[] = "/tmp/threadpool-test-XXXXXX", json[400], path[200];
  assert_non_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/a/b/file", directory);
#define FILE_OP(op, rest)                                                                          \
  (snprintf(json, sizeof json, "{\"op\": \"%s\", \"args\": {\"path\": \"%s\"%s}}", op, path,       \
            rest),                                                                                 \
   json)
  gives(FILE_OP("file_write", ", \"data\": \"one\", \"make_directories\": true, \"mode\": 384"), 0,
        NULL);
  struct stat s;
  assert_int_equal(stat(path, &s), 0);
  assert_int_equal(s.st_mode & 07777, 0600);
  gives(FILE_OP("file_write", ", \"data\": \" two\", \"append\": true"), 0, NULL);
  gives(FILE_OP("file_read", ""), 0, "one two");
  gives(FILE_OP("file_read", ", \"offset\": 4, \"length\": 2"), 0, "tw");
  result_t *r = wait_for(threadpool_submit(pool, FILE_OP("file_read", ", \"max_bytes\": 3")));
  assert_int_equal(r->status, ERR_IO);
  threadpool_result_free(r);
  unlink(path);
  r = wait_for(threadpool_submit(pool, FILE_OP("file_read", "")));
  assert_int_equal(r->status, ERR_IO);
  assert_non_null(strstr(r->error_msg, "No such file"));
  threadpool_result_free(r);
  for (int i = 0; i < 3; i++) {
    *strrchr(path, '/') = '\0';
    rmdir(path);
  }
  end();
}

/* Wrong: a file that was to grow is replaced. */
static void unknown_arguments_are_refused(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  gives("{\"op\": \"file_write\", \"args\": {\"path\": \"/no/such/file\", \"data\": \"x\", "
        "\"apend\": "
        "true}}",
        ERR_INVALID_ARGUMENT,
        "unknown argument \"apend\": expected path, data, append, mode, make_directories");
  gives("{\"op\": \"file_read\", \"args\": {\"path\": \"/dev/null\", \"\": 1}}",
        ERR_INVALID_ARGUMENT, "unknown argument \"\": expected path, offset, length, max_bytes");
  gives("{\"op\": \"write_memory\", \"args\": {\"write_to\": \"b\", \"data\": \"x\", \"dat\": 1}}",
        ERR_INVALID_ARGUMENT, "unknown argument \"dat\": expected write_to, data, offset");
  gives("{\"op\": \"read_memory\", \"args\": {\"read_from\": \"b\", \"rea\\nd\": 1}}",
        ERR_INVALID_ARGUMENT,
        "unknown argument \"rea\\u000ad\": expected read_from, offset, length");
  gives("{\"op\": \"sleep\", \"args\": {\"ms\": 60000, \"s\": 1}}", ERR_INVALID_ARGUMENT,
        "unknown argument \"s\": expected ms");
  gives("{\"op\": \"echo\", \"args\": {\"anything\": 1}}", 0, "{\"anything\":1}");
  end();
}

static void payload_length(task_t *task) {
  size_t size = 0;
  const char *data = threadpool_payload(task, &size);
  test_must(data && threadpool_user_data(task) == &called);
  test_must(threadpool_return_copy(task, data, size) == 0);
}
static void a_request_without_text_has_a_payload(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  threadpool_handler h = {
      .name = "raw", .opcode = 200, .run = payload_length, .user_data = (void *)&called};
  assert_int_equal(threadpool_register(pool, &h), 0);
  threadpool_request q = {.opcode = 200, .payload = "a\0b", .size = 3};
  uint64_t id;
  assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
  result_t *r = wait_for(id);
  assert_int_equal(r->data_size, 3);
  assert_memory_equal(r->data, "a\0b", 4);
  threadpool_result_free(r);
  end();
}

static int *volatile nowhere = (int *)0x10; /* the compiler does not know */
static void write_to_nowhere(task_t *task) {
  (void)task;
  *(volatile int *)nowhere = 1;
}
static int crash_the_second_time(task_t *task, void **state) {
  if (*state) write_to_nowhere(task);
  *state = task;
  return THREADPOOL_AGAIN;
}
static void a_handler_that_crashes_is_an_error(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2});
  threadpool_handler h[] = {
      {.name = "plain", .opcode = 201, .run = write_to_nowhere},
      {.name = "polled", .opcode = 202, .poll = crash_the_second_time},
      {.name = "blocked", .opcode = 203, .run = write_to_nowhere, .blocking = true}};
  for (int i = 0; i < 3; i++) assert_int_equal(threadpool_register(pool, &h[i]), 0);
  for (int i = 0; i < test_size(5, 100); i++) {
    gives("{\"op\": \"plain\"}", ERR_HANDLER_CRASH,
          "handler plain crashed: SIGSEGV at address 0x10");
    gives("{\"op\": \"polled\"}", ERR_HANDLER_CRASH,
          "handler polled crashed: SIGSEGV at address 0x10");
    gives("{\"op\": \"blocked\"}", ERR_HANDLER_CRASH,
          "handler blocked crashed: SIGSEGV at address 0x10");
    gives("{\"op\": \"echo\"}", 0, NULL);
  }
  end();
}

static long each;

/* What a handler breaks while it is in a call of the pool. Wrong: the call counts for ever, and the shutdown waits for it. */
static void submit_from_nowhere(task_t *task) {
  threadpool_submit(threadpool_pool(task), (const char *)nowhere);
}
static void a_bad_text_is_the_handlers_crash(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2, .max_pending = 2});
  threadpool_handler h = {.name = "submits", .opcode = 204, .run = submit_from_nowhere};
  assert_int_equal(threadpool_register(pool, &h), 0);
  for (int i = 0; i < 10; i++)
    gives("{\"op\": \"submits\"}", ERR_HANDLER_CRASH,
          "handler submits crashed: SIGSEGV at address 0x10");
  gives("{\"op\": \"echo\"}", 0, NULL);
  end();
}

#ifndef TEST_SANITIZED /* instrumented code needs more stack than X4 gives */
static volatile int never;
static void submit_once(task_t *task) {
  uint64_t id = threadpool_submit(threadpool_pool(task), "{\"op\": \"echo\", \"args\": {}}");
  if (id) threadpool_detach(threadpool_pool(task), id);
}
static void emit_once(task_t *task) {
  threadpool_emit(task, "part", 4);
}
static void fail_once(task_t *task) {
  threadpool_fail(task, ERR_IO, "%s %f", "part", 0.1);
}
static void register_once(task_t *task) {
  symbol_register(threadpool_symbols(threadpool_pool(task)), "r", &each, sizeof each);
  symbol_unregister(threadpool_symbols(threadpool_pool(task)), "r");
}
enum { ENTRIES_TO_FREE = 5000 }; /* more than there is stack for */
static result_t *entries_to_free[ENTRIES_TO_FREE];
static _Atomic int to_free;
static void free_once(task_t *task) {
  (void)task;
  int i = tp_sub(&to_free, 1, relaxed);
  test_must(i > 0);
  threadpool_result_free(entries_to_free[i - 1]);
}
static void without_end(task_t *task, void (*once)(task_t *)) {
  volatile char room = 0;
  once(task);
  if (!never) without_end(task, once);
  (void)room;
}
/* With little of the stack left, so that it does not take long. */
static void near_the_end(task_t *task) {
  pthread_attr_t a;
  void *base;
  size_t size;
  test_must(pthread_getattr_np(pthread_self(), &a) == 0);
  test_must(pthread_attr_getstack(&a, &base, &size) == 0);
  pthread_attr_destroy(&a);
  volatile char *room = alloca((size_t)((char *)&a - (char *)base) - (48 << 10));
  room[0] = 0;
  without_end(task, (void (*)(task_t *))threadpool_user_data(task));
}
static void crashes_at_last(const char *json) {
  uint64_t id; /* 0: what the one before has submitted is still to be done */
  while ((id = threadpool_submit(pool, json)) == 0) usleep(100);
  result_t *r;
  while ((r = wait_for(id))->flags == RESULT_PARTIAL) threadpool_result_free(r);
  assert_int_equal(r->status, ERR_HANDLER_CRASH);
  threadpool_result_free(r);
}
#endif
static void a_stack_overflows_in_a_call(void **state) {
  (void)state;
#ifndef TEST_SANITIZED
  begin((threadpool_options){.workers = 2, .max_pending = 1000});
  void (*const once[])(task_t *) = {submit_once, emit_once, fail_once, register_once};
  for (int i = 0; i < 4; i++) {
    threadpool_handler h = {
        .name = "overflows", .opcode = -1, .run = near_the_end, .user_data = (void *)once[i]};
    assert_int_equal(threadpool_register(pool, &h), 0);
    for (long k = test_size(10, 100); k > 0; k--) crashes_at_last("{\"op\": \"overflows\"}");
  }
  threadpool_handler h = {
      .name = "overflows", .opcode = -1, .run = near_the_end, .user_data = (void *)free_once};
  assert_int_equal(threadpool_register(pool, &h), 0);
  for (long k = test_size(10, 100); k > 0; k--) {
    for (; to_free < ENTRIES_TO_FREE; to_free++)
      entries_to_free[to_free] = wait_for(threadpool_submit(pool, "{\"op\": \"echo\"}"));
    crashes_at_last("{\"op\": \"overflows\"}");
  }
  while (to_free > 0) threadpool_result_free(entries_to_free[--to_free]);
  gives("{\"op\": \"echo\"}", 0, NULL);
  end();
#endif
}

/* --- many at once: each ends once, with the right kind */

enum { THREADS = 4 };
static void *submitter(void *arg) {
  unsigned seed = (unsigned)(uintptr_t)arg;
  for (long i = 0; i < each; i++) {
    int kind = (int)(i % 5);
    static const char *const json[5] = {
        "{\"op\": \"echo\", \"args\": {\"x\": 1}}",
        "{\"op\": ", "{\"op\": \"sleep\", \"args\": {\"ms\": 50000}}",
        "{\"op\": \"sleep\", \"args\": {\"ms\": 50000}, \"timeout_ms\": 1}",
        "{\"op\": \"echo\", \"args\": {\"parts\": [\"a\"]}}"};
    uint64_t id = threadpool_submit(pool, json[kind]);
    test_must(id != 0);
    if (kind == 2) test_must(threadpool_cancel(pool, id) == 1);
    int entries = 0, status;
    uint32_t flags;
    do {
      result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
      test_must(r && r->task_id == id);
      entries++;
      flags = r->flags;
      status = r->status;
      threadpool_result_free(r);
    } while (flags != RESULT_FINAL);
    static const int statuses[5] = {0, ERR_INVALID_JSON, ERR_CANCELLED, ERR_TIMEOUT, 0};
    test_must(status == statuses[kind] && entries == (kind == 4 ? 2 : 1));
    (void)seed;
  }
  return NULL;
}
static void every_request_ends_once(void **state) {
  (void)state;
  each = test_size(200, 2000);
  begin((threadpool_options){.workers = 2});
  pthread_t t[THREADS];
  for (long i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&t[i], NULL, submitter, (void *)i), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
  end();
}

/* Every allocation of a request's life fails once. */
static void a_request_survives_every_failure(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  for (long nth = 1; nth < 12; nth++) {
    tp_fail_at(nth);
    uint64_t id = threadpool_submit(
        pool, "{\"op\": \"echo\", \"args\": {\"parts\": [\"a\"]}, \"timeout_ms\": 60000}");
    if (id) {
      result_t *r;
      while ((r = threadpool_wait_result(pool, id, UINT32_MAX))->flags == RESULT_PARTIAL)
        threadpool_result_free(r);
      if (r->status != 0 && r->status != ERR_MALLOC_FAILED &&
          r->status != ERR_IO) /* no descriptor */
        fail_msg("failure %ld: %d %s", nth, r->status, r->error_msg);
      threadpool_result_free(r);
    }
    tp_fail_at(0);
  }
  end();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_request_is_decoded_strictly),
      cmocka_unit_test(the_outer_id_comes_back),
      cmocka_unit_test(an_unknown_id_gets_an_error),
      cmocka_unit_test(partial_results_come_in_order_then_one_final),
      cmocka_unit_test(a_part_that_is_no_string_is_named),
      cmocka_unit_test(a_plain_handler_waits_at_a_full_window),
      cmocka_unit_test(a_full_window_does_not_hold_a_shutdown_up),
      cmocka_unit_test(callbacks_get_every_entry),
      cmocka_unit_test(completions_come_in_batches),
      cmocka_unit_test(a_stream_to_the_queue_is_detached),
      cmocka_unit_test(a_stream_to_the_queue_is_cancelled),
      cmocka_unit_test(timeouts_and_cancellation_end_a_request),
      cmocka_unit_test(max_pending_bounds_what_is_not_fetched),
      cmocka_unit_test(results_outlive_their_pool),
      cmocka_unit_test(memory_is_read_and_written_by_name),
      cmocka_unit_test(files_are_read_and_written),
      cmocka_unit_test(unknown_arguments_are_refused),
      cmocka_unit_test(a_request_without_text_has_a_payload),
      cmocka_unit_test(a_handler_that_crashes_is_an_error),
      cmocka_unit_test(a_bad_text_is_the_handlers_crash),
      cmocka_unit_test(a_stack_overflows_in_a_call),
      cmocka_unit_test(every_request_ends_once),
      cmocka_unit_test(a_request_survives_every_failure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
