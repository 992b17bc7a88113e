/* test_queue.c - the global queue: order, fair share, exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sched/queue.h"

static int scale(int normal) {
  if (getenv("TP_QUICK")) return normal / 10 ? normal / 10 : 1;
  return getenv("TP_STRESS") ? normal * 20 : normal;
}

enum { INLETS = 4 };

static tp_queue queue;
static tp_inlet inlets[INLETS];
static tp_work works[1000];

static void begin(void) {
  memset(&queue, 0, sizeof queue);
  memset(inlets, 0, sizeof inlets);
  for (unsigned i = 0; i < INLETS; i++) tp_inlet_init(&inlets[i], i);
}
static void put(unsigned inlet, tp_work *work) {
  tp_lock_acquire(&inlets[inlet].lock);
  tp_queue_put(&queue, &inlets[inlet], TP_NORMAL, work);
  tp_lock_release(&inlets[inlet].lock);
}
static void inject(int from, int n) {
  for (int i = from; i < from + n; i++) put(0, &works[i]);
}
static void append(int from, int n) {
  tp_chain chain = {0};
  for (int i = from; i < from + n; i++) tp_chain_append(&chain, &works[i]);
  tp_queue_append(&queue, &chain);
  assert_null(chain.first);
  assert_int_equal(chain.length, 0);
}
/* Take, and find exactly works[from, from + n) and `left` more behind. */
static void takes(unsigned workers, unsigned most, int from, int n, size_t left) {
  tp_chain batch = {0};
  assert_int_equal(tp_queue_take(&queue, workers, most, &batch), left);
  assert_int_equal(batch.length, n);
  for (int i = from; i < from + n; i++) assert_ptr_equal(tp_chain_take(&batch), &works[i]);
  assert_null(batch.first);
  assert_null(batch.last);
  assert_int_equal(tp_queue_any(&queue), left > 0);
}

static void an_empty_one_gives_nothing(void **state) {
  (void)state;
  begin();
  assert_false(tp_queue_any(&queue));
  takes(1, 100, 0, 0, 0);
  append(0, 0);
  assert_false(tp_queue_any(&queue));
  takes(7, 1, 0, 0, 0);
}

/* Take all that is there, and find works[from, from + n). */
static void drains(int from, int n) {
  while (n > 0) {
    tp_chain batch = {0};
    size_t left = tp_queue_take(&queue, 1, TP_BATCH_MOST, &batch);
    assert_in_range(batch.length, 1, TP_BATCH_MOST);
    assert_true(tp_queue_any(&queue) || left == 0);
    for (tp_work *work; (work = tp_chain_take(&batch)); from++, n--)
      assert_ptr_equal(work, &works[from]);
  }
  takes(1, TP_BATCH_MOST, 0, 0, 0);
}

static void first_in_first_out(void **state) {
  (void)state;
  begin();
  for (int n = 1; n < 1000;
       n += n < 70 ? 1 : 111) { /* the borders of pieces, and of what is ahead */
    inject(0, n);
    assert_true(tp_queue_any(&queue));
    drains(0, n);
    append(0, n);
    assert_true(tp_queue_any(&queue));
    drains(0, n);
    append(0, n / 2);
    inject(n / 2, n - n / 2);
    drains(0, n);
  }
  /* What was left is older than what came since; what was put joins the list when one takes. */
  inject(0, 10);
  takes(1, 4, 0, 4, 6);
  inject(10, 10);
  takes(1, 6, 4, 6, 10);
  append(20, 10);
  inject(30, 5);
  drains(10, 25);
}

/* The inlet that got something first is emptied first, whole. */
static void inlets_take_turns(void **state) {
  (void)state;
  begin();
  for (int i = 0; i < 60; i++) {
    put(2, &works[i]);
    put(0, &works[60 + i]);
    if (i >= 30) put(3, &works[120 + i - 30]);
  }
  drains(0, 150);
  put(3, &works[0]);
  put(2, &works[1]);
  drains(0, 2);
}

/* The share of what is left, but not more than is left of a piece. */
static void each_gets_a_fair_share(void **state) {
  (void)state;
  for (unsigned workers = 1; workers <= 9; workers++) {
    for (unsigned most = 1; most <= TP_BATCH_MOST; most += 7) {
      begin();
      int n = 300, at = 0;
      inject(0, n);
      while (at < n) {
        int left = n - at, share = (left + (int)workers - 1) / (int)workers;
        int piece = TP_BATCH_MOST - at % TP_BATCH_MOST;
        if (share > (int)most) share = (int)most;
        if (share > piece) share = piece;
        assert_true(share > 0); /* a queue with something in it gives something */
        takes(workers, most, at, share, (size_t)(left - share));
        at += share;
      }
    }
  }
}

/* --- four producers and two takers */

enum { PRODUCERS = INLETS, TAKERS = 2 };

typedef struct {
  tp_work work; /* first: a tp_work * is an item * */
  unsigned producer, number, taken;
} item;

static item *items[PRODUCERS];
static unsigned each; /* of a producer */
static _Atomic unsigned items_left;
static _Atomic unsigned disorder;

/* Odd ones also append chains, as the overflow of a ring does. */
static void *producer(void *arg) {
  unsigned me = (unsigned)(uintptr_t)arg;
  tp_rng r;
  tp_rng_seed(&r, me);
  for (unsigned i = 0; i < each;) {
    tp_chain chain = {0};
    unsigned n = me % 2 && tp_rng_below(&r, 8) == 0 ? 1 + tp_rng_below(&r, 129) : 0;
    if (n == 0) {
      items[me][i] = (item){.producer = me, .number = i};
      put(me, &items[me][i++].work);
    }
    for (; n > 0 && i < each; n--, i++) {
      items[me][i] = (item){.producer = me, .number = i};
      tp_chain_append(&chain, &items[me][i].work);
    }
    if (chain.first) tp_queue_append(&queue, &chain);
    if (i % 512 == 0) sched_yield();
  }
  return NULL;
}

/* One producer's injected items come to one taker in the order in which they were injected. */
static void *taker(void *arg) {
  unsigned me = (unsigned)(uintptr_t)arg;
  int64_t last[PRODUCERS];
  for (int i = 0; i < PRODUCERS; i++) last[i] = -1;
  tp_rng r;
  tp_rng_seed(&r, 100 + me);
  while (tp_load(&items_left, relaxed)) {
    tp_chain batch = {0};
    tp_queue_take(&queue, 1 + tp_rng_below(&r, 4), 1 + tp_rng_below(&r, 128), &batch);
    if (!batch.first) sched_yield();
    unsigned n = 0;
    for (tp_work *work; (work = tp_chain_take(&batch)); n++) {
      item *it = (item *)work;
      it->taken++; /* plain: two takers are a race that a sanitizer sees */
      if (it->producer % 2) continue;
      if ((int64_t)it->number <= last[it->producer]) tp_add(&disorder, 1, relaxed);
      last[it->producer] = it->number;
    }
    if (batch.length != 0) tp_add(&disorder, 1, relaxed);
    tp_sub(&items_left, n, relaxed);
  }
  return NULL;
}

static void everything_is_taken_once_and_in_order(void **state) {
  (void)state;
  begin();
  each = (unsigned)scale(300000);
  for (int i = 0; i < PRODUCERS; i++) {
    items[i] = calloc(each, sizeof *items[i]);
    assert_non_null(items[i]);
  }
  tp_store(&disorder, 0, relaxed);
  tp_store(&items_left, PRODUCERS * each, relaxed);
  pthread_t p[PRODUCERS], t[TAKERS];
  for (uintptr_t i = 0; i < TAKERS; i++)
    assert_int_equal(pthread_create(&t[i], NULL, taker, (void *)i), 0);
  for (uintptr_t i = 0; i < PRODUCERS; i++)
    assert_int_equal(pthread_create(&p[i], NULL, producer, (void *)i), 0);
  for (int i = 0; i < PRODUCERS; i++) pthread_join(p[i], NULL);
  for (int i = 0; i < TAKERS; i++) pthread_join(t[i], NULL);
  assert_int_equal(tp_load(&disorder, relaxed), 0);
  for (unsigned k = 0; k < PRODUCERS; k++) {
    for (unsigned i = 0; i < each; i++) {
      if (items[k][i].number != i || items[k][i].taken != 1)
        fail_msg("item %u of %u: taken %u times", i, k, items[k][i].taken);
    }
    free(items[k]);
  }
  assert_false(tp_queue_any(&queue));
  takes(1, 100, 0, 0, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_empty_one_gives_nothing),
      cmocka_unit_test(first_in_first_out),
      cmocka_unit_test(inlets_take_turns),
      cmocka_unit_test(each_gets_a_fair_share),
      cmocka_unit_test(everything_is_taken_once_and_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
