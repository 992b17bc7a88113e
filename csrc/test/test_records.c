/* test_records.c - what requests are made of: records that are used again while their old ids are looked up (V1:
 * pool/call.h). */
#include "help.h"

#include <pthread.h>
#include <sched.h>

#include "base/atomic.h"

/* --- records */

enum { LOOKERS = 2 };

static threadpool_t *pool;
static _Atomic uint64_t recent; /* the id of a request that was there some moments ago */
static _Atomic bool over;
static _Atomic long looks;

/* Cancels and asks for what may be about to be given back, filled in again, or fetched: of the right request, or of
 * none. Under ThreadSanitizer a record that is shown before it is filled in would be a race. */
static void *look(void *arg) {
  (void)arg;
  while (!tp_load(&over, acquire)) {
    uint64_t id = tp_load(&recent, relaxed);
    for (uint64_t i = 0; i < 4; i++) {
      uint64_t other = id + (i << 26); /* its next uses, if they begin now */
      int status = threadpool_status(pool, other);
      test_must(status == ERR_INVALID_ARGUMENT || (status >= 0 && status <= THREADPOOL_DONE));
      if (i == 1) threadpool_cancel(pool, other);
      tp_add(&looks, 1, relaxed);
    }
  }
  return NULL;
}

static void a_look_up_finds_a_whole_request_or_none(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 2});
  pthread_t looker[LOOKERS];
  tp_store(&over, false, relaxed);
  for (int i = 0; i < LOOKERS; i++)
    assert_int_equal(pthread_create(&looker[i], NULL, look, NULL), 0);
  threadpool_request q[16];
  uint64_t ids[16];
  for (int i = 0; i < 16; i++)
    q[i] = (threadpool_request){.json = "{\"op\": \"echo\", \"args\": {\"a\": 1}}",
                                .deliver = i % 2 ? THREADPOOL_BY_QUEUE : THREADPOOL_BY_ID};
  for (long n = test_size(500, 5000); n > 0; n--) {
    assert_int_equal(threadpool_submit_batch(pool, q, 16, ids), 16);
    tp_store(&recent, ids[n % 16], relaxed);
    for (int i = 0; i < 16; i += 2) {
      result_t *r = threadpool_wait_result(pool, ids[i], UINT32_MAX);
      assert_non_null(r);
      assert_true(r->task_id == ids[i]);
      assert_true(r->status == 0 || r->status == ERR_CANCELLED);
      if (r->status == 0) assert_string_equal(r->data, "{\"a\":1}");
      threadpool_result_free(r);
    }
    result_t *r[8];
    for (size_t got = 0; got < 8;) {
      size_t more = threadpool_completions(pool, r + got, 8 - got);
      if (!more) sched_yield();
      for (; more > 0; more--, got++) {
        assert_true(r[got]->status == 0 || r[got]->status == ERR_CANCELLED);
        threadpool_result_free(r[got]);
      }
    }
  }
  tp_store(&over, true, release);
  for (int i = 0; i < LOOKERS; i++) pthread_join(looker[i], NULL);
  assert_true(tp_load(&looks, relaxed) > 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_look_up_finds_a_whole_request_or_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
