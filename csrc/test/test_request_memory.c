/* test_request_memory.c - every attempt to allocate in a request's life fails: once, and the request succeeds all the
 * same; or so often that it is refused, or ends as ERR_MALLOC_FAILED. Nothing leaks (make asan), and the pool works on. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "help.h"
#include "ops/builtin.h"
#include "pool/request.h"

/* --- tp_get */

static void memory_is_asked_for_again(void **state) {
  (void)state;
  for (int run = 0; run <= TP_GET_TRIES; run++) {
    tp_fail_run(1, run);
    char *p = tp_get(10);
    assert_int_equal(p == NULL, run == TP_GET_TRIES);
    assert_int_equal(tp_fail_left(), 0);
    if (!p) continue;
    strcpy(p, "123456789");
    tp_fail_run(1, run);
    p = tp_resize(p, 1000);
    assert_non_null(p);
    assert_string_equal(p, "123456789");
    tp_fail_run(1, TP_GET_TRIES);
    uint64_t begin = tp_now_ns();
    assert_null(tp_resize(p, 2000));
    assert_true(tp_now_ns() - begin >= 4 * TP_NS_PER_MS); /* it has slept */
    assert_string_equal(p, "123456789");
    tp_put(p);
  }
  tp_fail_at(0);
  tp_put(NULL);
}

static int decode(tp_ops *ops, const char *json) {
  static const tp_calls_options limits = {.max_request_bytes = 10000, .max_depth = 2};
  char text[200] = "";
  tp_request r;
  tp_arena full = {.used = TP_ARENA_SIZE};
  strcpy(text, json);
  int error = tp_request_decode(&r, ops, &limits, &full, text, strlen(text));
  yyjson_doc_free(r.doc);
  return error;
}
static void the_decoder_asks_again(void **state) {
  (void)state;
  tp_ops *ops = tp_ops_new();
  assert_non_null(ops);
  assert_int_equal(tp_builtin_add(ops, true), 0);
  const char *json = "{\"op\": \"echo\", \"args\": {\"a\": 1}}"; /* two attempts: values, depth */
  for (long nth = 1; nth <= 2; nth++) {
    for (int run = 1; run <= TP_GET_TRIES; run++) {
      tp_fail_run(nth, run);
      assert_int_equal(decode(ops, json), run < TP_GET_TRIES ? 0 : ERR_MALLOC_FAILED);
      assert_int_equal(tp_fail_left(), 0);
      if (run == TP_GET_TRIES) assert_non_null(strstr(tp_said(), "out of memory"));
    }
  }
  tp_fail_at(0);
  assert_int_equal(decode(ops, json), 0);
  tp_ops_free(ops);
}

/* --- whole requests */

static threadpool_t *pool;
static char path[100], region[16];

static _Atomic int finals, final_status;
static void on_result(result_t *r, void *user_data) {
  (void)user_data;
  if (r->flags == RESULT_FINAL) {
    final_status = r->status;
    tp_add(&finals, 1, release); /* pairs with the wait below */
  }
  threadpool_result_free(r);
}

static void raw(task_t *task) {
  size_t size = 0;
  const void *data = threadpool_payload(task, &size);
  test_must(data || size == 0);
  int error = threadpool_return_copy(task, data, size);
  if (error) threadpool_fail(task, error, "raw: %s", threadpool_error_text(error));
}
static void printed(task_t *task) {
  size_t length;
  if (!threadpool_arg_json(task, NULL, &length) || !threadpool_arg_json(task, "a", &length))
    threadpool_fail(task, ERR_MALLOC_FAILED, "printed: out of memory");
}

static int status_of(result_t *r) {
  int status = r->status;
  if (status < 0) test_must(r->error_msg[0]);
  threadpool_result_free(r);
  return status;
}

/* The status of its final entry; what last_error has to say if it was refused. */
static int run(const threadpool_request *q) {
  uint64_t id;
  finals = 0;
  if (threadpool_submit_batch(pool, q, 1, &id) == 0) {
    assert_true(id == 0);
    assert_non_null(strstr(threadpool_last_error(), "out of memory"));
    return ERR_MALLOC_FAILED;
  }
  if (q->deliver == THREADPOOL_BY_CALLBACK) {
    test_wait(tp_load(&finals, acquire) > 0);
    assert_int_equal(finals, 1);
    return final_status;
  }
  for (;;) {
    result_t *r = NULL;
    if (q->deliver == THREADPOOL_BY_QUEUE)
      test_wait(threadpool_completions(pool, &r, 1) == 1);
    else
      r = threadpool_wait_result(pool, id, 60000);
    assert_non_null(r);
    assert_true(r->task_id == id);
    if (r->flags == RESULT_FINAL) return status_of(r);
    assert_int_equal(status_of(r), 0);
  }
}

/* A pool of its own each time: what is made when it is first needed is part of the request's life. */
static void begin(void) {
  pool = test_pool((threadpool_options){.workers = 1, .initial_capacity = 1});
  const threadpool_handler h[] = {{.name = "raw", .opcode = 100, .run = raw},
                                  {.name = "printed", .opcode = 101, .run = printed}};
  for (int i = 0; i < 2; i++) assert_int_equal(threadpool_register(pool, &h[i]), 0);
  assert_int_equal(symbol_register(threadpool_symbols(pool), "b", region, sizeof region), 0);
}

static void survives(const threadpool_request *q, int expected, long count) {
  long nth = 1, succeeded = 0, refused = 0;
  for (bool fired = true; fired; nth++) {
    begin();
    tp_fail_run(nth, count);
    int status = run(q);
    fired = tp_fail_left() < count;
    tp_fail_at(0);
    if (status == expected)
      succeeded++;
    else if (status == ERR_MALLOC_FAILED || status == ERR_IO) /* ERR_IO: no descriptor */
      refused++;
    else
      fail_msg("%.100s, attempt %ld: %d", q->json ? q->json : "payload", nth, status);
    if (!fired || count == 1) assert_int_equal(status, expected);
    assert_int_equal(run(&(threadpool_request){.json = "{\"op\": \"echo\", \"args\": {}}"}), 0);
    assert_int_equal(run(q), expected);
    assert_int_equal(threadpool_shutdown(pool), 0);
    assert_true(nth < 200);
  }
  assert_true(nth > 2 && succeeded > 0); /* at least one attempt was there to fail */
  if (count >= TP_GET_TRIES) assert_true(refused > 0);
}

/* Its text with spaces behind it, so that it needs more than the record's own memory (pool/arena.h); a small one may
 * need none. */
static void each_attempt(const threadpool_request *q, int expected) {
  char text[TP_ARENA_SIZE + 1];
  threadpool_request padded = *q;
  if (q->json) {
    memset(text, ' ', sizeof text);
    memcpy(text, q->json, strlen(q->json));
    padded.json = text;
    padded.length = sizeof text;
  }
  survives(&padded, expected, 1);
  survives(&padded, expected, TP_GET_TRIES);
  survives(&padded, expected, 3 * TP_GET_TRIES);
}
static void each_of(const char *json, int expected) {
  each_attempt(&(threadpool_request){.json = json}, expected);
}

static void echo(void **state) {
  (void)state;
  each_of("{\"op\": \"echo\", \"args\": {\"a\": [1, \"x\"]}}", 0);
  each_of("{\"op\": \"printed\", \"args\": {\"a\": [1, \"x\"]}}", 0);
}
static void parts(void **state) {
  (void)state;
  threadpool_request q = {.json =
                              "{\"op\": \"echo\", \"args\": {\"parts\": [\"a\", \"b\", \"c\"]}}",
                          .callback = on_result};
  for (q.deliver = THREADPOOL_BY_ID; q.deliver <= THREADPOOL_BY_QUEUE; q.deliver++)
    each_attempt(&q, 0);
}
static void sleep_with_a_limit(void **state) {
  (void)state;
  each_of("{\"op\": \"sleep\", \"args\": {\"ms\": 1}, \"timeout_ms\": 60000}", 0);
  each_of("{\"op\": \"sleep\", \"args\": {\"ms\": 60000}, \"timeout_ms\": 1}", ERR_TIMEOUT);
}
static void memory(void **state) {
  (void)state;
  each_of("{\"op\": \"write_memory\", \"args\": {\"write_to\": \"b\", \"data\": \"Hello\"}}", 0);
  each_of("{\"op\": \"read_memory\", \"args\": {\"read_from\": \"b\"}}", 0);
}
static void files(void **state) {
  (void)state;
  char json[300];
  snprintf(path, sizeof path, "/tmp/threadpool-test-%ld", (long)getpid());
  snprintf(json, sizeof json,
           "{\"op\": \"file_write\", \"args\": {\"path\": \"%s\", \"data\": \"Hello\"}}", path);
  each_of(json, 0);
  snprintf(json, sizeof json, "{\"op\": \"file_read\", \"args\": {\"path\": \"%s\"}}", path);
  each_of(json, 0);
  unlink(path);
}
static void bad_json(void **state) {
  (void)state;
  each_of("{\"op\": ", ERR_INVALID_JSON);
  each_of("{\"op\": \"dance\"}", ERR_UNKNOWN_OPCODE);
}
static void payload(void **state) {
  (void)state;
  each_attempt(&(threadpool_request){.opcode = 100, .payload = "abc", .size = 3}, 0);
}

/* When all records there are in memory are taken, more is asked for, again and again. */
static void a_record_is_asked_for_again(void **state) {
  (void)state;
  enum { MAGAZINES = TP_SLAB_FIRST / TP_MAGAZINE * TP_MAGAZINE };
  const char *json = "{\"op\": \"echo\", \"args\": {}}";
  uint64_t id = 0;
  begin();
  for (int i = 0; i <= TP_SLAB_FIRST; i++) {
    test_wait(!id || threadpool_status(pool, id) == THREADPOOL_DONE); /* nobody allocates */
    if (i == MAGAZINES) tp_fail_at(1); /* what is left of the segment has to do */
    if (i == TP_SLAB_FIRST) tp_fail_run(1, TP_GET_TRIES);
    id = threadpool_submit(pool, json);
    assert_int_equal(tp_fail_left(), 0);
    assert_int_equal(id != 0, i < TP_SLAB_FIRST);
  }
  assert_non_null(strstr(threadpool_last_error(), "out of memory"));
  tp_fail_run(1, TP_GET_TRIES - 1);
  id = threadpool_submit(pool, json);
  assert_int_equal(tp_fail_left(), 0);
  assert_true(id != 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* A blocking handler that gets no thread. Wrong: its callback is called by the submitter, or on a timer's thread. */
static void never(task_t *task) {
  (void)task;
  test_must(false);
}
static _Atomic(void *) ended_on;
static void on_end(result_t *r, void *user_data) {
  test_must(r->status == ERR_MALLOC_FAILED || r->status == ERR_TIMEOUT);
  tp_store(&ended_on, (void *)threadpool_current(), relaxed);
  on_result(r, user_data);
}
static void a_worker_ends_what_gets_no_thread(void **state) {
  (void)state;
  begin();
  const threadpool_handler h = {.name = "never", .opcode = 102, .run = never, .blocking = true};
  assert_int_equal(threadpool_register(pool, &h), 0);
  assert_int_equal(run(&(threadpool_request){.json = "{\"op\": \"sleep\", \"args\": {\"ms\": 0}}"}),
                   0); /* the reactor is there */
  static const char *const json[] = {"{\"op\": \"never\"}",
                                     "{\"op\": \"never\", \"timeout_ms\": 1}"};
  for (int i = 0; i < 2; i++) {
    tp_store(&ended_on, NULL, relaxed);
    threadpool_request q = {.json = json[i], .deliver = THREADPOOL_BY_CALLBACK, .callback = on_end};
    tp_fail_run(1, 1000000);
    int status = run(&q);
    tp_fail_at(0);
    assert_int_equal(status, i ? ERR_TIMEOUT : ERR_MALLOC_FAILED);
    assert_non_null(tp_load(&ended_on, relaxed));
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_asked_for_again),
      cmocka_unit_test(the_decoder_asks_again),
      cmocka_unit_test(echo),
      cmocka_unit_test(parts),
      cmocka_unit_test(sleep_with_a_limit),
      cmocka_unit_test(memory),
      cmocka_unit_test(files),
      cmocka_unit_test(bad_json),
      cmocka_unit_test(payload),
      cmocka_unit_test(a_record_is_asked_for_again),
      cmocka_unit_test(a_worker_ends_what_gets_no_thread),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
