/* test_ring.c - a worker's queue of 256 tasks: order, overflow, stealing, wrapping, exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sched/ring.h"

static int scale(int normal) {
  if (getenv("TP_QUICK")) return normal / 10 ? normal / 10 : 1;
  return getenv("TP_STRESS") ? normal * 20 : normal;
}

/* Where the counters begin: at 0, and so that they wrap at each place of interest. */
static const uint32_t starts[] = {0,
                                  1,
                                  UINT32_MAX,
                                  UINT32_MAX - 1,
                                  UINT32_MAX - 100,
                                  UINT32_MAX - 127,
                                  UINT32_MAX - 128,
                                  UINT32_MAX - 255,
                                  UINT32_MAX - 256,
                                  UINT32_MAX - 300,
                                  0x7fffff80u};
enum { STARTS = sizeof starts / sizeof *starts };

static void set_head(tp_ring *r, uint32_t steal, uint32_t real) {
  tp_store(&r->head, (uint64_t)steal << 32 | real, relaxed);
}
static void reset(tp_ring *r, uint32_t start) {
  memset(r, 0, sizeof *r);
  set_head(r, start, start);
  tp_store(&r->tail, start, relaxed);
}

static tp_ring ring, other;
static tp_work works[1024];

static void fill(tp_ring *r, unsigned from, unsigned n) {
  tp_chain overflow = {0};
  for (unsigned i = from; i < from + n; i++) tp_ring_push(r, &works[i], &overflow);
  assert_int_equal(overflow.length, 0);
}
static void drains_as(tp_ring *r, unsigned from, unsigned n) {
  for (unsigned i = from; i < from + n; i++) assert_ptr_equal(tp_ring_pop(r), &works[i]);
  assert_null(tp_ring_pop(r));
  assert_true(tp_ring_empty(r));
  assert_int_equal(tp_ring_room(r), TP_RING_SLOTS);
}

static void first_in_first_out(void **state) {
  (void)state;
  for (int s = 0; s < STARTS; s++) {
    reset(&ring, starts[s]);
    assert_true(tp_ring_empty(&ring));
    assert_null(tp_ring_pop(&ring));
    for (unsigned n = 1; n <= TP_RING_SLOTS; n++) {
      fill(&ring, n, n);
      assert_false(tp_ring_empty(&ring));
      assert_int_equal(tp_ring_room(&ring), TP_RING_SLOTS - n);
      drains_as(&ring, n, n);
    }
    /* Pushes and pops mixed, with the ring's end passed often. */
    tp_rng r;
    tp_rng_seed(&r, (uint64_t)s);
    unsigned in = 0, out = 0;
    tp_chain overflow = {0};
    for (int i = 0; i < 10000; i++) {
      if (in - out < TP_RING_SLOTS && tp_rng_below(&r, 2)) {
        tp_ring_push(&ring, &works[in++ % 1024], &overflow);
      } else {
        tp_work *work = tp_ring_pop(&ring);
        assert_ptr_equal(work, in == out ? NULL : &works[out % 1024]);
        if (work) out++;
      }
      assert_int_equal(tp_ring_room(&ring), TP_RING_SLOTS - (in - out));
      assert_int_equal(tp_ring_empty(&ring), in == out);
    }
    assert_int_equal(overflow.length, 0);
  }
}

static void the_older_half_overflows(void **state) {
  (void)state;
  for (int s = 0; s < STARTS; s++) {
    reset(&ring, starts[s]);
    fill(&ring, 0, 256);
    tp_chain overflow = {0};
    tp_ring_push(&ring, &works[256], &overflow);
    assert_int_equal(overflow.length, 129);
    for (unsigned i = 0; i < 128; i++) assert_ptr_equal(tp_chain_take(&overflow), &works[i]);
    assert_ptr_equal(tp_chain_take(&overflow), &works[256]);
    assert_null(tp_chain_take(&overflow));
    assert_int_equal(tp_ring_room(&ring), 128);
    drains_as(&ring, 128, 128);
  }
}

/* A thief that has claimed [steal, real) and is still copying: its slots are not free. */
static void beside_a_thief(void **state) {
  (void)state;
  for (int s = 0; s < STARTS; s++) {
    uint32_t start = starts[s];
    reset(&ring, start);
    reset(&other, 0);
    fill(&ring, 0, 256);
    set_head(&ring, start, start + 128);
    assert_int_equal(tp_ring_room(&ring), 0);
    tp_chain overflow = {0};
    tp_ring_push(&ring, &works[256], &overflow);
    assert_int_equal(overflow.length, 1);
    assert_ptr_equal(tp_chain_take(&overflow), &works[256]);

    assert_null(tp_ring_steal(&ring, &other)); /* one thief at a time */

    /* Pops move only `real`. */
    for (unsigned i = 128; i < 200; i++) assert_ptr_equal(tp_ring_pop(&ring), &works[i]);
    assert_int_equal(tp_load(&ring.head, relaxed), (uint64_t)start << 32 | (uint32_t)(start + 200));
    assert_int_equal(tp_ring_room(&ring), 0);
    for (unsigned i = 200; i < 256; i++) assert_ptr_equal(tp_ring_pop(&ring), &works[i]);
    assert_null(tp_ring_pop(&ring));
    assert_true(tp_ring_empty(&ring));
    assert_int_equal(tp_ring_room(&ring), 0);

    set_head(&ring, start + 256, start + 256); /* the thief has done */
    assert_int_equal(tp_ring_room(&ring), 256);
    fill(&ring, 0, 256);
    drains_as(&ring, 0, 256);
  }
}

static void a_thief_gets_half(void **state) {
  (void)state;
  for (int s = 0; s < STARTS; s++) {
    for (unsigned n = 0; n <= TP_RING_SLOTS; n++) {
      reset(&ring, starts[s]);
      reset(&other, starts[(s + n) % STARTS]);
      fill(&ring, 0, n);
      unsigned half = n - n / 2;
      tp_work *work = tp_ring_steal(&ring, &other);
      if (n == 0) {
        assert_null(work);
        continue;
      }
      assert_ptr_equal(work, &works[half - 1]);
      drains_as(&other, 0, half - 1);
      assert_int_equal(tp_ring_room(&ring), TP_RING_SLOTS - (n - half));
      drains_as(&ring, half, n - half);
    }
  }
}

static void a_thief_needs_room(void **state) {
  (void)state;
  reset(&ring, 0);
  reset(&other, 0);
  fill(&ring, 0, 256);
  fill(&other, 512, 129);
  assert_null(tp_ring_steal(&ring, &other));
  assert_ptr_equal(tp_ring_pop(&other), &works[512]);
  assert_ptr_equal(tp_ring_steal(&ring, &other), &works[127]);
  for (unsigned i = 513; i < 641; i++) assert_ptr_equal(tp_ring_pop(&other), &works[i]);
  drains_as(&other, 0, 127);
  drains_as(&ring, 128, 128);
}

/* --- one owner and three thieves, who also rob each other */

enum { THIEVES = 3 };

typedef struct {
  tp_work work; /* first: a tp_work * is an item * */
  unsigned number, taken;
} item;

static item *items;
static tp_ring rings[1 + THIEVES]; /* 0 is the owner's */
static _Atomic unsigned items_left;

/* `taken` is plain: two takers are a race that a sanitizer sees, and a count that is not 1. */
static void take(tp_work *work) {
  ((item *)work)->taken++;
  tp_sub(&items_left, 1, relaxed);
}

static void *thief(void *arg) {
  unsigned me = (unsigned)(uintptr_t)arg;
  tp_rng r;
  tp_rng_seed(&r, me);
  while (tp_load(&items_left, relaxed)) {
    unsigned victim = tp_rng_below(&r, 4) ? 0 : tp_rng_below(&r, 1 + THIEVES);
    tp_work *work = victim == me ? NULL : tp_ring_steal(&rings[victim], &rings[me]);
    if (work)
      take(work);
    else
      sched_yield();
    /* Leave some for the others to take. */
    for (unsigned keep = tp_rng_below(&r, 3); TP_RING_SLOTS - tp_ring_room(&rings[me]) > keep;) {
      work = tp_ring_pop(&rings[me]);
      if (!work) break;
      take(work);
    }
  }
  return NULL;
}

static void race(unsigned n, uint32_t start, unsigned most) {
  items = calloc(n, sizeof *items);
  assert_non_null(items);
  for (int i = 0; i <= THIEVES; i++) reset(&rings[i], start + 1000u * (unsigned)i);
  tp_store(&items_left, n, relaxed);
  pthread_t t[THIEVES];
  for (uintptr_t i = 0; i < THIEVES; i++)
    assert_int_equal(pthread_create(&t[i], NULL, thief, (void *)(i + 1)), 0);
  tp_rng r;
  tp_rng_seed(&r, start);
  for (unsigned i = 0; i < n;) {
    tp_chain overflow = {0};
    for (unsigned k = 1 + tp_rng_below(&r, most); k > 0 && i < n; k--, i++) {
      items[i].number = i;
      tp_ring_push(&rings[0], &items[i].work, &overflow);
    }
    for (tp_work *work; (work = tp_chain_take(&overflow));) take(work);
    for (unsigned k = tp_rng_below(&r, most); k > 0; k--) {
      tp_work *work = tp_ring_pop(&rings[0]);
      if (!work) break;
      take(work);
    }
  }
  while (tp_load(&items_left, relaxed)) {
    tp_work *work = tp_ring_pop(&rings[0]);
    if (work)
      take(work);
    else
      sched_yield(); /* thieves have the rest */
  }
  for (int i = 0; i < THIEVES; i++) pthread_join(t[i], NULL);
  for (unsigned i = 0; i < n; i++) {
    if (items[i].number != i || items[i].taken != 1)
      fail_msg("item %u (%u): taken %u times", i, items[i].number, items[i].taken);
  }
  for (int i = 0; i <= THIEVES; i++) {
    assert_true(tp_ring_empty(&rings[i]));
    assert_int_equal(tp_ring_room(&rings[i]), TP_RING_SLOTS);
  }
  free(items);
}

static void everything_is_taken_once(void **state) {
  (void)state;
  race((unsigned)scale(1000000), 0, 200);
}
static void everything_is_taken_once_as_the_counters_wrap(void **state) {
  (void)state;
  race((unsigned)scale(500000), UINT32_MAX - (unsigned)scale(250000), 600);
  for (int i = 0; i < scale(20); i++) race(2000, UINT32_MAX - 1000, 100);
}
/* A ring with hardly anything in it: owner and thieves want the same one. */
static void single_tasks_are_taken_once(void **state) {
  (void)state;
  race((unsigned)scale(500000), UINT32_MAX - 5000, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(first_in_first_out),
      cmocka_unit_test(the_older_half_overflows),
      cmocka_unit_test(beside_a_thief),
      cmocka_unit_test(a_thief_gets_half),
      cmocka_unit_test(a_thief_needs_room),
      cmocka_unit_test(everything_is_taken_once),
      cmocka_unit_test(everything_is_taken_once_as_the_counters_wrap),
      cmocka_unit_test(single_tasks_are_taken_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
