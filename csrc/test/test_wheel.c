/* test_wheel.c - the timer wheel (io/wheel.h) against a sorted array.
 *
 * What would be seen if it were wrong: another timer than the model's, or the same ones in another
 * order, come out of an advance; tp_wheel_next lets a deadline pass or makes a sleeper wake too
 * often; a bitmap says something else than the lists (W3).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "io/wheel.h"

enum { POPULATION = 1500 };

/* --- the model -------------------------------------------------------------------------------- */

/* Pending timers by (tick, order of insertion). */
typedef struct model {
  tp_timer *at[POPULATION];
  uint64_t tick[POPULATION];
  size_t count;
} model;

static void model_insert(model *m, tp_timer *t, uint64_t tick) {
  size_t low = 0, high = m->count;
  while (low < high) { /* the first one later than tick: behind its equals */
    size_t middle = (low + high) / 2;
    if (m->tick[middle] <= tick)
      low = middle + 1;
    else
      high = middle;
  }
  memmove(&m->at[low + 1], &m->at[low], (m->count - low) * sizeof m->at[0]);
  memmove(&m->tick[low + 1], &m->tick[low], (m->count - low) * sizeof m->tick[0]);
  m->at[low] = t;
  m->tick[low] = tick;
  m->count++;
}

static void model_delete(model *m, size_t first, size_t n) {
  size_t behind = m->count - first - n;
  memmove(&m->at[first], &m->at[first + n], behind * sizeof m->at[0]);
  memmove(&m->tick[first], &m->tick[first + n], behind * sizeof m->tick[0]);
  m->count -= n;
}

/* --- both side by side ------------------------------------------------------------------------ */

typedef struct pair {
  tp_wheel wheel;
  model model;
  tp_timer timer[POPULATION];
  tp_rng rng;
} pair;

static pair *pair_new(uint64_t seed, uint64_t now) {
  pair *p = calloc(1, sizeof *p);
  assert_non_null(p);
  tp_rng_seed(&p->rng, seed);
  tp_wheel_init(&p->wheel, now);
  return p;
}

static void pair_insert(pair *p, tp_timer *t, uint64_t tick) {
  tp_wheel_insert(&p->wheel, t, tick);
  model_insert(&p->model, t, tick);
}

/* Advance both and compare, timer by timer; how many came out. */
static size_t pair_advance(pair *p, uint64_t now) {
  tp_timer_link out;
  tp_timer_list_init(&out);
  uint64_t before = p->wheel.elapsed;
  tp_wheel_advance(&p->wheel, now, &out);
  if (now < before) now = before; /* W1: a clock that goes back stands still */
  assert_true(p->wheel.elapsed == now);
  size_t n = 0;
  for (tp_timer *t; (t = tp_timer_list_first(&out)); n++) {
    assert_true(t->tick <= now); /* W1: never early */
    assert_true(n < p->model.count);
    assert_ptr_equal(t, p->model.at[n]); /* in order of ticks, equal ones as inserted (W5) */
    tp_wheel_remove(&p->wheel, t);
    assert_false(tp_timer_pending(t));
  }
  if (n < p->model.count) assert_true(p->model.tick[n] > now); /* never late */
  model_delete(&p->model, 0, n);
  return n;
}

static size_t list_length(const tp_timer_link *head) {
  size_t n = 0;
  for (const tp_timer_link *l = head->next; l != head; l = l->next) {
    assert_ptr_equal(l->next->prev, l);
    n++;
  }
  return n;
}

/* W2, W3, and that nothing is lost or in two lists. */
static void check_structure(const pair *p) {
  const tp_wheel *w = &p->wheel;
  size_t total = list_length(&w->overdue) + list_length(&w->far);
  for (unsigned level = 0; level < TP_WHEEL_LEVELS; level++) {
    for (unsigned slot = 0; slot < TP_WHEEL_SLOTS; slot++) {
      const tp_timer_link *head = &w->slot[level][slot];
      assert_int_equal(w->occupied[level] >> slot & 1, head->next != head);
      unsigned shift = level * TP_WHEEL_BITS;
      for (const tp_timer_link *l = head->next; l != head; l = l->next) {
        uint64_t tick = ((const tp_timer *)l)->tick;
        assert_true(tick > w->elapsed);
        assert_true(tick >> (shift + 6) == w->elapsed >> (shift + 6));
        assert_int_equal(tick >> shift & 63, slot);
      }
      total += list_length(head);
    }
  }
  assert_int_equal(total, p->model.count);
}

/* A sleeper that wakes at tp_wheel_next misses nothing, and does not turn on the spot. */
static void check_next(const pair *p) {
  uint64_t next = tp_wheel_next(&p->wheel);
  if (p->model.count == 0) {
    assert_true(next == TP_WHEEL_NEVER);
  } else if (p->model.tick[0] <= p->wheel.elapsed) {
    assert_true(next == p->wheel.elapsed);
  } else {
    assert_true(next > p->wheel.elapsed);
    assert_true(next <= p->model.tick[0]);
    if (p->model.count == 1 || p->model.tick[0] >> 6 == p->wheel.elapsed >> 6)
      assert_true(next == p->model.tick[0]);
  }
}

/* A distance of any magnitude, small ones as likely as large ones. */
static uint64_t any_distance(tp_rng *rng, unsigned bits) {
  return tp_rng_next(rng) >> (64 - bits + tp_rng_below(rng, bits));
}

static uint64_t plus(uint64_t a, uint64_t b) {
  return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t any_tick(pair *p, unsigned bits) {
  uint64_t now = p->wheel.elapsed, d = any_distance(&p->rng, bits);
  switch (tp_rng_below(&p->rng, 8)) {
  case 0: return d < now ? now - d : 0; /* in the past */
  case 1:
    return p->model.count ? p->model.tick[tp_rng_below(&p->rng, (uint32_t)p->model.count)] : now;
  default: return plus(now, d);
  }
}

static void run_random(uint64_t seed, uint64_t now, unsigned bits, long operations) {
  pair *p = pair_new(seed, now);
  tp_rng *rng = &p->rng;
  size_t most = 0;
  for (long i = 0; i < operations; i++) {
    tp_timer *t = &p->timer[tp_rng_below(rng, POPULATION)];
    uint32_t what = tp_rng_below(rng, 1000);
    if (what < 975) {
      if (!tp_timer_pending(t)) {
        pair_insert(p, t, any_tick(p, bits));
      } else {
        size_t i = 0;
        while (p->model.at[i] != t) i++;
        model_delete(&p->model, i, 1);
        tp_wheel_remove(&p->wheel, t);
        assert_false(tp_timer_pending(t));
      }
    } else if (what < 995) {
      uint64_t next = tp_wheel_next(&p->wheel);
      if (next != TP_WHEEL_NEVER) pair_advance(p, next);
    } else {
      /* Mostly a little, so that the wheel is well filled; now and then past everything. */
      unsigned reach = tp_rng_below(rng, 50) ? bits * 3 / 4 : bits;
      pair_advance(p, plus(p->wheel.elapsed, any_distance(rng, reach)));
    }
    most = p->model.count > most ? p->model.count : most;
    check_next(p);
    if (i % 1024 == 0) check_structure(p);
    /* Time would come to its end and everything be in the past: begin again. */
    if (p->wheel.elapsed > UINT64_MAX / 2 && bits == 63) {
      pair_advance(p, UINT64_MAX);
      assert_int_equal(p->model.count, 0);
      tp_wheel_init(&p->wheel, now);
    }
  }
  assert_true(most > POPULATION / 4); /* else this has shown little */
  pair_advance(p, UINT64_MAX);
  assert_int_equal(p->model.count, 0);
  assert_true(tp_wheel_next(&p->wheel) == TP_WHEEL_NEVER);
  free(p);
}

/* Of each of four tests. */
static long operations(void) {
  return getenv("TP_QUICK") ? 20000 : getenv("TP_STRESS") ? 5000000 : 250000;
}

/* --- properties ------------------------------------------------------------------------------- */

static void agrees_with_the_model_on_short_deadlines(void **state) {
  (void)state;
  run_random(1, 0, 12, operations());
}

static void agrees_with_the_model_on_deadlines_of_hours(void **state) {
  (void)state;
  run_random(2, 123456789, 26, operations());
}

static void agrees_with_the_model_around_the_end_of_the_range(void **state) {
  (void)state;
  run_random(3, (1ull << 36) - 1000, 38, operations());
}

static void agrees_with_the_model_on_huge_jumps_and_far_deadlines(void **state) {
  (void)state;
  run_random(4, 5, 63, operations());
}

/* One timer from `now` to `tick`, with others around it, so that cascades have to tell them apart. */
static void one_deadline(pair *p, uint64_t now, uint64_t tick) {
  tp_wheel_init(&p->wheel, now);
  pair_insert(p, &p->timer[0], tick);
  pair_insert(p, &p->timer[1], plus(tick, 1));
  pair_insert(p, &p->timer[2], plus(tick, 64));
  check_structure(p);
  check_next(p);
  if (tick > now) {
    assert_int_equal(pair_advance(p, tick - 1), 0);
    check_structure(p);
    check_next(p);
  }
  assert_true(pair_advance(p, tick) >= 1); /* more at the end of time only */
  pair_advance(p, UINT64_MAX);
  assert_int_equal(p->model.count, 0);
}

/* From and to both sides of every border between slots, levels and epochs. */
static void fires_at_its_tick_and_not_one_tick_earlier(void **state) {
  (void)state;
  pair *p = pair_new(1, 0);
  for (unsigned from = 0; from < 64; from += getenv("TP_QUICK") ? 6 : 1) {
    for (uint64_t before = 0; before < 3; before++) {
      uint64_t now = (1ull << from) + 1 - before;
      for (unsigned bit = 0; bit < 64; bit++) {
        for (uint64_t below = 0; below < 3; below++) {
          one_deadline(p, now, plus(now, (1ull << bit) + 1 - below)); /* a distance */
          one_deadline(p, now, (1ull << bit) + 1 - below);            /* a number, or in the past */
        }
      }
    }
  }
  free(p);
}

static void a_deadline_in_the_past_expires_at_the_next_advance(void **state) {
  (void)state;
  pair *p = pair_new(1, 1000);
  uint64_t ticks[] = {900, 1000, 0, 900, 1001, 17, 1000, 17};
  for (size_t i = 0; i < 8; i++) pair_insert(p, &p->timer[i], ticks[i]);
  check_next(p);
  assert_int_equal(pair_advance(p, 1000), 7); /* time need not have moved; 1001 stays */
  assert_int_equal(pair_advance(p, 1001), 1);
  pair_insert(p, &p->timer[0], 5);
  assert_int_equal(pair_advance(p, 3), 1); /* a clock that goes back expires nothing else */
  assert_true(p->wheel.elapsed == 1001);
  free(p);
}

/* Timers of one tick, inserted while it is years, hours, seconds and nothing away. */
static void equal_deadlines_keep_their_order_whatever_level_they_came_in_by(void **state) {
  (void)state;
  uint64_t tick = (5ull << 36) + (9ull << 30) + 12345;
  uint64_t away[] = {tick,    4ull << 36, 3ull << 36, 1ull << 35, 1ull << 31,
                     1 << 24, 1 << 18,    1 << 12,    100,        1};
  pair *p = pair_new(1, 0);
  for (size_t i = 0; i < 10; i++) {
    pair_advance(p, tick - away[i]);
    pair_insert(p, &p->timer[2 * i], tick);
    pair_insert(p, &p->timer[2 * i + 1], tick);
    check_structure(p);
  }
  assert_int_equal(pair_advance(p, tick), 20);
  free(p);
}

static void many_late_timers_come_out_sorted(void **state) {
  (void)state;
  pair *p = pair_new(9, 1 << 20);
  for (size_t i = 0; i < POPULATION; i++) pair_insert(p, &p->timer[i], tp_rng_below(&p->rng, 300));
  assert_int_equal(pair_advance(p, 1 << 20), POPULATION);
  free(p);
}

/* A sleeper wakes for a timer that is alone only when it is due, and else at most once a level. */
static void a_sleeper_wakes_for_cascades_at_most(void **state) {
  (void)state;
  pair *p = pair_new(3, 999);
  for (int round = 0; round < 2000; round++) {
    uint64_t start = p->wheel.elapsed;
    uint64_t tick = plus(start, 1 + any_distance(&p->rng, 36));
    int timers = round % 2 ? 1 : 5, wakes = 0;
    for (int i = 0; i < timers; i++) pair_insert(p, &p->timer[i], tick);
    while (p->model.count) {
      assert_true(tp_wheel_next(&p->wheel) <= tick);
      pair_advance(p, tp_wheel_next(&p->wheel));
      wakes++;
    }
    assert_true(p->wheel.elapsed == tick);
    if (timers == 1) assert_int_equal(wakes, 1);
    assert_true(wakes <= TP_WHEEL_LEVELS + 1);
  }
  free(p);
}

static void an_expired_timer_can_be_removed_from_the_list_given_out(void **state) {
  (void)state;
  pair *p = pair_new(1, 0);
  for (int i = 0; i < 3; i++) tp_wheel_insert(&p->wheel, &p->timer[i], 10);
  tp_timer_link out;
  tp_timer_list_init(&out);
  tp_wheel_advance(&p->wheel, 10, &out);
  tp_wheel_remove(&p->wheel, &p->timer[1]);
  assert_ptr_equal(tp_timer_list_first(&out), &p->timer[0]);
  tp_wheel_remove(&p->wheel, &p->timer[0]);
  assert_ptr_equal(tp_timer_list_first(&out), &p->timer[2]);
  tp_wheel_remove(&p->wheel, &p->timer[2]);
  assert_null(tp_timer_list_first(&out));
  check_structure(p);
  free(p);
}

/* What a reactor does when a timer that is due is stopped, or moved, before it is called. */
static void an_expired_timer_can_be_inserted_again_before_the_others_are_called(void **state) {
  (void)state;
  pair *p = pair_new(1, 0);
  for (int i = 0; i < 3; i++) tp_wheel_insert(&p->wheel, &p->timer[i], 10);
  tp_timer_link out;
  tp_timer_list_init(&out);
  tp_wheel_advance(&p->wheel, 10, &out);
  tp_wheel_remove(&p->wheel, &p->timer[0]);
  tp_wheel_insert(&p->wheel, &p->timer[0], 11); /* to later */
  tp_wheel_remove(&p->wheel, &p->timer[1]);
  tp_wheel_insert(&p->wheel, &p->timer[1], 3); /* to the past */
  assert_int_equal(list_length(&out), 1);
  assert_true(tp_wheel_next(&p->wheel) == 10);
  tp_wheel_advance(&p->wheel, 11, &out); /* behind those that still wait there */
  tp_timer *expected[] = {&p->timer[2], &p->timer[1], &p->timer[0]};
  for (int i = 0; i < 3; i++) {
    assert_ptr_equal(tp_timer_list_first(&out), expected[i]);
    tp_wheel_remove(&p->wheel, expected[i]);
  }
  assert_null(tp_timer_list_first(&out));
  check_structure(p);
  free(p);
}

/* Removing the last timer of a slot must clear its bit, and only its bit (W3). */
static void removing_leaves_no_trace(void **state) {
  (void)state;
  pair *p = pair_new(1, 0);
  for (unsigned bit = 0; bit < 40; bit++) {
    tp_timer *first = &p->timer[2 * bit], *second = &p->timer[2 * bit + 1];
    pair_insert(p, first, 1ull << bit);
    pair_insert(p, second, 1ull << bit);
  }
  for (unsigned bit = 0; bit < 40; bit++) {
    for (unsigned i = 0; i < 2; i++) {
      tp_wheel_remove(&p->wheel, &p->timer[2 * bit + i]);
      model_delete(&p->model, 0, 1);
      check_structure(p);
      check_next(p);
    }
  }
  assert_int_equal(pair_advance(p, UINT64_MAX), 0);
  free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(agrees_with_the_model_on_short_deadlines),
      cmocka_unit_test(agrees_with_the_model_on_deadlines_of_hours),
      cmocka_unit_test(agrees_with_the_model_around_the_end_of_the_range),
      cmocka_unit_test(agrees_with_the_model_on_huge_jumps_and_far_deadlines),
      cmocka_unit_test(fires_at_its_tick_and_not_one_tick_earlier),
      cmocka_unit_test(a_deadline_in_the_past_expires_at_the_next_advance),
      cmocka_unit_test(equal_deadlines_keep_their_order_whatever_level_they_came_in_by),
      cmocka_unit_test(many_late_timers_come_out_sorted),
      cmocka_unit_test(a_sleeper_wakes_for_cascades_at_most),
      cmocka_unit_test(an_expired_timer_can_be_removed_from_the_list_given_out),
      cmocka_unit_test(an_expired_timer_can_be_inserted_again_before_the_others_are_called),
      cmocka_unit_test(removing_leaves_no_trace),
  };
  return cmocka_run_group_tests_name("wheel", tests, NULL, NULL);
}
