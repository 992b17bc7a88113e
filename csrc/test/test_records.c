/* test_records.c - what requests are made of: records that are used again while their old ids are looked up (V1:
 * pool/call.h), and the blocks of large ones (B1, B2: pool/blocks.h). */
#include "help.h"

#include <pthread.h>
#include <sched.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "pool/blocks.h"

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

/* --- blocks */

static void a_block_is_as_large_as_asked_for(void **state) {
  (void)state;
  tp_blocks *kept[2] = {NULL, tp_blocks_new()};
  assert_non_null(kept[1]);
  for (int k = 0; k < 2; k++) {
    for (size_t size = 1; size <= 2 * (size_t)TP_BLOCK_MOST; size = size * 3 / 2 + 1) {
      char *p = tp_block_get(kept[k], size);
      assert_non_null(p);
      assert_int_equal((uintptr_t)p % 16, 0);
      memset(p, 'x', size);
      p = tp_block_resize(kept[k], p, 2 * size);
      assert_non_null(p);
      for (size_t i = 0; i < size; i++) assert_true(p[i] == 'x');
      memset(p, 'y', 2 * size);
      p = tp_block_resize(kept[k], p, size / 2 + 1);
      assert_non_null(p);
      for (size_t i = 0; i < size / 2 + 1; i++) assert_true(p[i] == 'y');
      tp_block_put(kept[k], p);
    }
    tp_block_put(kept[k], NULL);
    assert_null(tp_block_get(kept[k], SIZE_MAX));
    tp_blocks_free(kept[k]);
  }
}

static void without_memory_a_block_stays_as_it_is(void **state) {
  (void)state;
  tp_fail_at(1);
  assert_null(tp_blocks_new());
  tp_blocks *b = tp_blocks_new();
  assert_non_null(b);
  tp_fail_run(1, TP_GET_TRIES);
  assert_null(tp_block_get(b, 100));
  for (size_t size = 100; size <= 2 * (size_t)TP_BLOCK_MOST; size += 2 * TP_BLOCK_MOST - 100) {
    char *p = tp_block_get(b, size);
    assert_non_null(p);
    strcpy(p, "as it was");
    tp_fail_run(1, TP_GET_TRIES);
    assert_null(tp_block_resize(b, p, 4 * (size_t)TP_BLOCK_MOST));
    assert_string_equal(p, "as it was");
    assert_null(tp_block_resize(b, p, SIZE_MAX));
    tp_block_put(b, p);
  }
  tp_fail_at(0);
  tp_blocks_free(b);
}

/* B1: so many bytes need no malloc any more, and not more than those. */
static void some_blocks_are_kept(void **state) {
  (void)state;
  enum { MANY = (TP_BLOCKS_OWN + TP_BLOCKS_COMMON) / TP_BLOCK_LEAST + 10 };
  static void *p[MANY];
  tp_blocks *b = tp_blocks_new();
  assert_non_null(b);
  for (int i = 0; i < MANY; i++) assert_non_null(p[i] = tp_block_get(b, 3000));
  for (int i = 0; i < MANY; i++) tp_block_put(b, p[i]);
  tp_fail_run(1, 1000000); /* nothing is to be had from now on */
  int got = 0;
  while (got < MANY && (p[got] = tp_block_get(b, 3000))) got++;
  tp_fail_at(0);
#ifdef __SANITIZE_ADDRESS__
  assert_int_equal(got, 0);
#else
  assert_in_range(got, MANY - 15, MANY - 10);
#endif
  for (int i = 0; i < got; i++) tp_block_put(b, p[i]);
  tp_blocks_free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_look_up_finds_a_whole_request_or_none),
      cmocka_unit_test(a_block_is_as_large_as_asked_for),
      cmocka_unit_test(without_memory_a_block_stays_as_it_is),
      cmocka_unit_test(some_blocks_are_kept),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
