/* test_sync.c - the lock and the latch (sync/).
 *
 * A wake-up that is lost is seen as a test that does not end (the runner kills it). cmocka's
 * assertions leave by longjmp, so only the main thread makes them; others count in `wrong`.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/rng.h"
#include "sync/futex.h"
#include "sync/latch.h"
#include "sync/lock.h"

enum { THREADS = 4 };

static _Atomic long wrong; /* seen by a thread that may not assert */

static long times(long normal) {
  if (getenv("TP_QUICK")) return normal / 20;
  return getenv("TP_STRESS") ? normal * 30 : normal;
}

static void spin(uint32_t rounds) {
  while (rounds--) tp_pause();
}

/* --- lock ------------------------------------------------------------------------------------- */

static void a_lock_has_one_holder(void **state) {
  (void)state;
  tp_lock l = {0};
  assert_true(tp_lock_try(&l));
  assert_false(tp_lock_try(&l));
  tp_lock_release(&l);
  assert_true(tp_lock_try(&l));
  tp_lock_release(&l);
  tp_lock_acquire(&l);
  assert_false(tp_lock_try(&l));
  tp_lock_release(&l);
  assert_int_equal(l.word, 0);
}

typedef struct guarded {
  tp_lock lock;
  long rounds;
  /* Neither atomic nor volatile: only the lock keeps them right, and ThreadSanitizer quiet. */
  long count, shadow, holders;
  long holds[THREADS];
  _Atomic int next;
} guarded;

static void *guarded_main(void *arg) {
  guarded *g = arg;
  int me = tp_add(&g->next, 1, relaxed);
  tp_rng rng;
  tp_rng_seed(&rng, (uint64_t)me);
  for (long i = 0; i < g->rounds; i++) {
    if (i % 4 || !tp_lock_try(&g->lock)) tp_lock_acquire(&g->lock);
    if (g->holders++ != 0 || g->count != g->shadow) tp_add(&wrong, 1, relaxed);
    g->count++;
    spin(tp_rng_below(&rng, 20));   /* so that others come in between, if they can */
    if (i % 64 == 0) sched_yield(); /* and so that they really wait in the kernel */
    g->shadow++;
    g->holds[me]++;
    g->holders--;
    tp_lock_release(&g->lock);
    if (i % 8 == 0) spin(tp_rng_below(&rng, 100));
  }
  return NULL;
}

/* Wrong: two holders at once, an increment lost, or a waiter that nobody wakes. */
static void a_lock_excludes_and_loses_no_waiter(void **state) {
  (void)state;
  guarded g = {.rounds = times(200000)};
  pthread_t thread[THREADS];
  tp_store(&wrong, 0, relaxed);
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&thread[i], NULL, guarded_main, &g), 0);
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  assert_int_equal(wrong, 0);
  assert_int_equal(g.count, THREADS * g.rounds);
  assert_int_equal(g.shadow, THREADS * g.rounds);
  for (int i = 0; i < THREADS; i++) assert_int_equal(g.holds[i], g.rounds);
  assert_int_equal(g.lock.word, 0);
}

static void *once_main(void *lock) {
  tp_lock_acquire(lock);
  tp_lock_release(lock);
  return NULL;
}

/* Nobody comes later who would wake those forgotten. Wrong: it does not end, because one of several
 * waiters took the lock and did not pass on that others wait. */
static void all_waiters_get_the_lock_in_the_end(void **state) {
  (void)state;
  for (long round = times(100); round >= 0; round--) {
    tp_lock l = {0};
    pthread_t thread[THREADS];
    tp_lock_acquire(&l);
    for (int i = 0; i < THREADS; i++)
      assert_int_equal(pthread_create(&thread[i], NULL, once_main, &l), 0);
    while (tp_load(&l.word, relaxed) != 2) sched_yield();
    nanosleep(&(struct timespec){0, 300000}, NULL); /* most of them wait in the kernel by now */
    tp_lock_release(&l);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    assert_int_equal(l.word, 0);
  }
}

/* --- latch ------------------------------------------------------------------------------------ */

/* Brings a latch into a state the way its owner does. */
static void bring_to(tp_latch *l, uint32_t state) {
  tp_latch_reset(l);
  if (state == TP_SET) {
    tp_latch_set(l);
  } else {
    if (state >= TP_SLEEPY) assert_true(tp_latch_sleepy(l));
    if (state == TP_SLEEPING) assert_true(tp_latch_sleep(l));
  }
  assert_int_equal(tp_load(l, relaxed), state);
}

static void a_latch_makes_the_transitions_of_its_diagram_and_no_other(void **state) {
  (void)state;
  tp_latch l = 0; /* zeroed memory is a latch */
  assert_int_equal(tp_load(&l, relaxed), TP_UNSET);
  for (uint32_t from = TP_UNSET; from <= TP_SET; from++) {
    bring_to(&l, from);
    assert_int_equal(tp_latch_is_set(&l), from == TP_SET);

    if (from == TP_UNSET || from == TP_SET) { /* the owner calls it in these states */
      assert_int_equal(tp_latch_sleepy(&l), from == TP_UNSET);
      assert_int_equal(tp_load(&l, relaxed), from == TP_UNSET ? TP_SLEEPY : TP_SET);
    }
    bring_to(&l, from);
    if (from == TP_SLEEPY || from == TP_SET) {
      assert_int_equal(tp_latch_sleep(&l), from == TP_SLEEPY);
      assert_int_equal(tp_load(&l, relaxed), from == TP_SLEEPY ? TP_SLEEPING : TP_SET);
    }
    bring_to(&l, from);
    assert_int_equal(tp_latch_set(&l), from); /* tells what it was: SLEEPING has to be woken */
    assert_true(tp_latch_is_set(&l));
    assert_int_equal(tp_latch_set(&l), TP_SET);

    bring_to(&l, from);
    tp_latch_reset(&l);
    assert_int_equal(tp_load(&l, relaxed), TP_UNSET);
  }
}

static void a_set_between_the_last_look_and_the_sleep_keeps_the_owner_awake(void **state) {
  (void)state;
  tp_latch l = 0;
  assert_true(tp_latch_sleepy(&l));
  assert_int_equal(tp_latch_set(&l), TP_SLEEPY); /* nobody to wake */
  assert_false(tp_latch_sleep(&l));
  assert_true(tp_latch_is_set(&l));
  tp_latch_block(&l, 0); /* and if it blocked all the same, it would return at once */
  tp_latch_reset(&l);
  assert_int_equal(tp_latch_set(&l), TP_UNSET);
  assert_false(tp_latch_sleepy(&l));
  tp_latch_block(&l, 0);
}

static void a_latch_blocks_until_its_deadline_and_not_less(void **state) {
  (void)state;
  tp_latch l = 0;
  for (int i = 0; i < 5; i++) {
    bring_to(&l, TP_SLEEPING);
    uint64_t deadline = tp_now_ns() + (uint64_t)i * 3 * TP_NS_PER_MS + 1;
    tp_latch_block(&l, deadline);
    assert_true(tp_now_ns() >= deadline);
    assert_int_equal(tp_load(&l, relaxed), TP_SLEEPING); /* it stays with the owner to undo it */
  }
  bring_to(&l, TP_SLEEPING);
  tp_latch_block(&l, 1); /* long ago */
  bring_to(&l, TP_SET);
  tp_latch_block(&l, UINT64_MAX / 2); /* not needed: it is set */
}

/* Two threads that give each other the turn, one latch each. */
typedef struct player {
  tp_latch latch;
  struct player *other;
  pthread_t thread;
  long rounds, blocked, spared;
  uint64_t seed;
  bool deadlines;
  long *ball; /* neither atomic nor volatile: passed on by the latches alone */
} player;

static void player_wait(player *p, tp_rng *rng) {
  spin(tp_rng_below(rng, 60)); /* so that the set meets it in each of its states */
  while (!tp_latch_is_set(&p->latch)) {
    if (!tp_latch_sleepy(&p->latch)) break;
    spin(tp_rng_below(rng, 60));
    if (!tp_latch_sleep(&p->latch)) {
      p->spared++;
      break;
    }
    p->blocked++;
    tp_latch_block(&p->latch, p->deadlines ? tp_now_ns() + tp_rng_below(rng, 50000) : 0);
    if (!tp_latch_is_set(&p->latch)) {
      /* The deadline has passed: back to UNSET, unless a set comes first. */
      uint32_t was = TP_SLEEPING;
      tp_cas(&p->latch, &was, TP_UNSET, relaxed);
      if (!p->deadlines) tp_add(&wrong, 1, relaxed); /* without one it must not return */
    }
  }
  if (!tp_latch_is_set(&p->latch)) tp_add(&wrong, 1, relaxed);
  tp_latch_reset(&p->latch);
}

static void player_pass(player *p) {
  uint32_t was = tp_latch_set(&p->other->latch);
  if (was == TP_SET) tp_add(&wrong, 1, relaxed); /* it had the turn already */
  if (was == TP_SLEEPING) tp_latch_wake(&p->other->latch);
}

static void *player_main(void *arg) {
  player *p = arg;
  tp_rng rng;
  tp_rng_seed(&rng, p->seed);
  for (long i = 0; i < p->rounds; i++) {
    player_wait(p, &rng);
    if (*p->ball != 2 * i + (long)p->seed) tp_add(&wrong, 1, relaxed);
    ++*p->ball;
    player_pass(p);
  }
  return NULL;
}

static void play(bool deadlines, long rounds) {
  player p[2];
  long ball = 0;
  tp_store(&wrong, 0, relaxed);
  for (int i = 0; i < 2; i++) {
    p[i] = (player){.other = &p[!i], .rounds = rounds, .seed = (uint64_t)i, .ball = &ball};
    p[i].deadlines = deadlines;
  }
  tp_latch_set(&p[0].latch);
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&p[i].thread, NULL, player_main, &p[i]), 0);
  for (int i = 0; i < 2; i++) pthread_join(p[i].thread, NULL);
  assert_int_equal(wrong, 0);
  assert_int_equal(ball, 2 * rounds);
  assert_true(p[0].blocked + p[1].blocked > 0); /* else this has shown nothing */
}

/* Wrong: it does not end; a block that ends without a set; a turn given twice; what the setter wrote is
 * not seen (ThreadSanitizer). */
static void two_threads_hand_over_the_turn(void **state) {
  (void)state;
  play(false, times(100000));
}

static void two_threads_hand_over_the_turn_though_they_wake_by_themselves(void **state) {
  (void)state;
  play(true, times(20000));
}

static void *block_main(void *latch) {
  if (!tp_latch_sleepy(latch) || !tp_latch_sleep(latch)) tp_add(&wrong, 1, relaxed);
  tp_latch_block(latch, 0);
  if (!tp_latch_is_set(latch)) tp_add(&wrong, 1, relaxed);
  return NULL;
}

/* As by a late wake-up that was meant for an earlier sleep. Wrong: the block ends without a set. */
static void a_wake_without_a_set_ends_no_sleep(void **state) {
  (void)state;
  tp_store(&wrong, 0, relaxed);
  for (long round = times(100); round >= 0; round--) {
    tp_latch l = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, block_main, &l), 0);
    while (tp_load(&l, relaxed) != TP_SLEEPING) sched_yield();
    for (int i = 0; i < 10; i++) {
      nanosleep(&(struct timespec){0, 20000}, NULL); /* so that it is in the kernel again */
      tp_latch_wake(&l);
    }
    if (tp_latch_set(&l) != TP_SLEEPING) tp_add(&wrong, 1, relaxed);
    tp_latch_wake(&l);
    pthread_join(thread, NULL);
  }
  assert_int_equal(wrong, 0);
}

/* --- futex ------------------------------------------------------------------------------------ */

static void a_futex_does_not_block_on_another_value(void **state) {
  (void)state;
  _Atomic uint32_t word = 5;
  tp_futex_wait(&word, 4); /* wrong: does not end */
  tp_futex_wait_until(&word, 4, UINT64_MAX / 2);
  uint64_t deadline = tp_now_ns() + TP_NS_PER_MS;
  while (tp_now_ns() < deadline) tp_futex_wait_until(&word, 5, deadline);
  tp_futex_wake(&word, INT_MAX); /* nobody there */
  assert_int_equal(word, 5);
}

typedef struct crowd {
  _Atomic uint32_t word;
  _Atomic int waiting, woken;
} crowd;

static void *crowd_main(void *arg) {
  crowd *c = arg;
  tp_add(&c->waiting, 1, release);
  while (tp_load(&c->word, acquire) == 0) tp_futex_wait(&c->word, 0);
  tp_add(&c->woken, 1, release);
  return NULL;
}

static void a_futex_wakes_all_who_wait(void **state) {
  (void)state;
  for (long round = times(200); round >= 0; round--) {
    crowd c = {0};
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++)
      assert_int_equal(pthread_create(&thread[i], NULL, crowd_main, &c), 0);
    while (tp_load(&c.waiting, acquire) < THREADS) sched_yield();
    if (round % 2) nanosleep(&(struct timespec){0, 100000}, NULL); /* likely in the kernel by now */
    tp_store(&c.word, 1, release);
    tp_futex_wake(&c.word, INT_MAX);
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    assert_int_equal(c.woken, THREADS);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_lock_has_one_holder),
      cmocka_unit_test(a_lock_excludes_and_loses_no_waiter),
      cmocka_unit_test(all_waiters_get_the_lock_in_the_end),
      cmocka_unit_test(a_latch_makes_the_transitions_of_its_diagram_and_no_other),
      cmocka_unit_test(a_set_between_the_last_look_and_the_sleep_keeps_the_owner_awake),
      cmocka_unit_test(a_latch_blocks_until_its_deadline_and_not_less),
      cmocka_unit_test(two_threads_hand_over_the_turn),
      cmocka_unit_test(two_threads_hand_over_the_turn_though_they_wake_by_themselves),
      cmocka_unit_test(a_wake_without_a_set_ends_no_sleep),
      cmocka_unit_test(a_futex_does_not_block_on_another_value),
      cmocka_unit_test(a_futex_wakes_all_who_wait),
  };
  return cmocka_run_group_tests_name("sync", tests, NULL, NULL);
}
