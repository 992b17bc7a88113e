/* test_state.c - the state word of a task: every transition from every state, and the races. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>

#include <cmocka.h>

#include "task/state.h"

static int scale(int normal) {
  if (getenv("TP_QUICK")) return normal / 10 ? normal / 10 : 1;
  return getenv("TP_STRESS") ? normal * 20 : normal;
}

/* Every combination of lifecycle, flags, shield 0..2 and references 1..2. */
enum { WORDS = 4 * 8 * 3 * 2 };
static uint64_t word(int i) {
  uint64_t s = (uint64_t)(i % 4);
  s |= (uint64_t)(i / 4 % 8) << 8;
  s += (uint64_t)(i / 32 % 3) * TP_SHIELD_ONE;
  return s + (uint64_t)(1 + i / 96) * TP_REF_ONE;
}
#define FOR_EACH_WORD(s)                                                                           \
  for (int i_ = 0; i_ < WORDS; i_++)                                                               \
    for (uint64_t s = word(i_), once_ = 1; once_; once_ = 0)

static void the_parts_of_a_word(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    assert_int_equal(tp_lifecycle(s), i_ % 4);
    assert_int_equal(tp_refs(s), 1 + i_ / 96);
    assert_int_equal(tp_is_cancelled(s), (s & TP_CANCELLED) && i_ / 32 % 3 == 0);
    for (unsigned to = TP_IDLE; to <= TP_COMPLETE; to++) {
      assert_int_equal(tp_lifecycle(tp_with(s, to)), to);
      assert_int_equal(tp_with(s, to) & ~TP_LIFECYCLE_MASK, s & ~TP_LIFECYCLE_MASK);
    }
  }
  assert_int_equal(tp_refs(0xffffffull * TP_REF_ONE), 0xffffff);
}

static void start(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    if (tp_lifecycle(s) != TP_SCHEDULED) continue; /* K1 */
    tp_state t = s;
    assert_int_equal(tp_state_start(&t), tp_is_cancelled(s) ? TP_START_CANCELLED : TP_START_RUN);
    assert_int_equal(t, tp_with(s, TP_RUNNING) & ~TP_NOTIFIED);
  }
}

static void pause_(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    if (tp_lifecycle(s) != TP_RUNNING) continue; /* K2 */
    tp_state t = s;
    tp_pause_outcome outcome = tp_state_pause(&t);
    if (tp_is_cancelled(s)) {
      assert_int_equal(outcome, TP_PAUSE_CANCELLED);
      assert_int_equal(t, s);
    } else if (s & TP_NOTIFIED) {
      assert_int_equal(outcome, TP_PAUSE_AGAIN);
      assert_int_equal(t, tp_with(s, TP_SCHEDULED) & ~TP_NOTIFIED);
    } else {
      assert_int_equal(outcome, TP_PAUSE_IDLE);
      assert_int_equal(t, tp_with(s, TP_IDLE));
    }
  }
}

static void wake(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    tp_state t = s;
    bool idle = tp_lifecycle(s) == TP_IDLE;
    assert_int_equal(tp_state_wake(&t), idle ? TP_WAKE_SUBMIT : TP_WAKE_NOTHING);
    if (idle)
      assert_int_equal(t, tp_with(s, TP_SCHEDULED));
    else if (tp_lifecycle(s) == TP_RUNNING)
      assert_int_equal(t, s | TP_NOTIFIED);
    else
      assert_int_equal(t, s);
    uint64_t after = t;
    assert_int_equal(tp_state_wake(&t), TP_WAKE_NOTHING); /* K3: the first one did it */
    assert_int_equal(t, after);
  }
}

static void cancel(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    tp_state t = s;
    tp_cancel_outcome outcome = tp_state_cancel(&t);
    switch (tp_lifecycle(s)) {
    case TP_COMPLETE:
      assert_int_equal(outcome, TP_CANCEL_TOO_LATE);
      assert_int_equal(t, s);
      break;
    case TP_IDLE:
      assert_int_equal(outcome, TP_CANCEL_SUBMIT);
      assert_int_equal(t, tp_with(s, TP_SCHEDULED) | TP_CANCELLED);
      assert_int_equal(tp_state_cancel(&t), TP_CANCEL_ASKED); /* submitted once */
      break;
    case TP_RUNNING:
      assert_int_equal(outcome, TP_CANCEL_ASKED);
      assert_int_equal(t, s | TP_CANCELLED | TP_NOTIFIED);
      break;
    default: assert_int_equal(outcome, TP_CANCEL_ASKED); assert_int_equal(t, s | TP_CANCELLED);
    }
  }
}

static void end(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    if (tp_lifecycle(s) != TP_RUNNING) continue; /* K2 */
    tp_state t = s;
    tp_end_outcome outcome = tp_state_end(&t);
    if (s & TP_JOIN_INTEREST) { /* the reference is kept for the telling */
      assert_int_equal(outcome, TP_END_TELL);
      assert_int_equal(t, tp_with(s, TP_COMPLETE));
    } else {
      assert_int_equal(outcome, tp_refs(s) == 1 ? TP_END_FREE : TP_END_KEPT);
      assert_int_equal(t, tp_with(s, TP_COMPLETE) - TP_REF_ONE);
    }
  }
}

static void join_and_unjoin(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    bool alive = tp_lifecycle(s) != TP_COMPLETE;
    tp_state t = s;
    assert_int_equal(tp_state_join(&t), alive);
    assert_int_equal(t, alive ? s | TP_JOIN_INTEREST : s);
    t = s;
    assert_int_equal(tp_state_unjoin(&t), alive);
    assert_int_equal(t, alive ? s & ~TP_JOIN_INTEREST : s);
  }
}

static void references(void **state) {
  (void)state;
  FOR_EACH_WORD(s) {
    tp_state t = s;
    tp_state_ref(&t);
    assert_int_equal(t, s + TP_REF_ONE);
    assert_true(tp_state_try_ref(&t));
    assert_int_equal(t, s + 2 * TP_REF_ONE);
    assert_false(tp_state_unref(&t));
    assert_false(tp_state_unref(&t));
    assert_int_equal(t, s);
    assert_int_equal(tp_state_unref(&t), tp_refs(s) == 1);
    if (tp_refs(s) == 2) assert_true(tp_state_unref(&t));
    assert_int_equal(t, s & ~TP_REF_MASK);
    assert_false(tp_state_try_ref(&t)); /* the dead stay dead */
    assert_int_equal(t, s & ~TP_REF_MASK);
  }
}

static void a_shield_holds_cancellation_off(void **state) {
  (void)state;
  tp_state t = TP_REF_ONE + TP_SCHEDULED;
  assert_int_equal(tp_state_start(&t), TP_START_RUN);
  tp_add(&t, TP_SHIELD_ONE, relaxed);
  assert_int_equal(tp_state_cancel(&t), TP_CANCEL_ASKED);
  assert_int_equal(tp_state_pause(&t), TP_PAUSE_AGAIN); /* polled once more, to see it */
  assert_int_equal(tp_state_start(&t), TP_START_RUN);
  assert_int_equal(tp_state_pause(&t), TP_PAUSE_IDLE); /* and may wait as long as it is shielded */
  assert_int_equal(tp_state_wake(&t), TP_WAKE_SUBMIT);
  assert_int_equal(tp_state_start(&t), TP_START_RUN);
  tp_sub(&t, TP_SHIELD_ONE, relaxed);
  assert_int_equal(tp_state_pause(&t), TP_PAUSE_CANCELLED);
  assert_int_equal(tp_state_end(&t), TP_END_FREE);
}

/* --- races. A task waits for `given` to change; a queue of one place stands for the scheduler. */

static tp_state task;
static _Atomic bool queued; /* the place */
static _Atomic unsigned wrong, submits, runs;
static _Atomic unsigned long given, received;

/* Whoever gets SUBMIT or AGAIN queues it: the place must be free, or it was queued twice. */
static void submit(void) {
  tp_add(&submits, 1, relaxed);
  if (tp_swap(&queued, true, acq_rel)) tp_add(&wrong, 1, relaxed);
}

static void race_begins(void) {
  tp_store(&task, TP_REF_ONE + TP_IDLE, relaxed);
  tp_store(&queued, false, relaxed);
  tp_store(&wrong, 0, relaxed);
  tp_store(&submits, 0, relaxed);
  tp_store(&runs, 0, relaxed);
  tp_store(&given, 0, relaxed);
  tp_store(&received, 0, relaxed);
}

/* Runs the task until it has received `arg`, then once it has been cancelled. A poll looks at `given`. */
static void *runner(void *arg) {
  unsigned long last = (unsigned long)(uintptr_t)arg;
  for (;;) {
    if (!tp_swap(&queued, false, acq_rel)) {
      sched_yield();
      continue;
    }
    tp_add(&runs, 1, relaxed);
    if (tp_state_start(&task) == TP_START_CANCELLED) break;
    tp_store(&received, tp_load(&given, acquire), release);
    tp_pause_outcome outcome = tp_state_pause(&task);
    if (outcome == TP_PAUSE_AGAIN) submit();
    if (outcome == TP_PAUSE_CANCELLED) break;
  }
  if (tp_load(&received, relaxed) != last) tp_add(&wrong, 1, relaxed);
  if (tp_state_end(&task) != TP_END_FREE) tp_add(&wrong, 1, relaxed);
  return NULL;
}

/* One gives and wakes and waits until that has arrived: a lost wake would hang. */
static void no_wake_is_lost(void **state) {
  (void)state;
  race_begins();
  unsigned long n = (unsigned long)scale(60000);
  pthread_t t;
  assert_int_equal(pthread_create(&t, NULL, runner, (void *)(uintptr_t)n), 0);
  for (unsigned long i = 1; i <= n; i++) {
    tp_store(&given, i, release); /* not an RMW: the wake itself has to order it */
    if (tp_state_wake(&task) == TP_WAKE_SUBMIT) submit();
    if (i % 7 < 5) /* sometimes several wakes in a row */
      while (tp_load(&received, acquire) != i) sched_yield();
  }
  while (tp_load(&received, acquire) != n) sched_yield();
  if (tp_state_cancel(&task) == TP_CANCEL_SUBMIT) submit();
  pthread_join(t, NULL);
  assert_int_equal(tp_load(&wrong, relaxed), 0);
  assert_int_equal(tp_load(&runs, relaxed), tp_load(&submits, relaxed));
  assert_int_equal(task, TP_CANCELLED + TP_COMPLETE + (task & TP_NOTIFIED));
}

/* Two waken at once, neither waiting for the other. */
static void *waker(void *arg) {
  unsigned long n = (unsigned long)(uintptr_t)arg;
  for (unsigned long i = 0; i < n; i++) {
    tp_add(&given, 1, acq_rel);
    if (tp_state_wake(&task) == TP_WAKE_SUBMIT) submit();
    if (i % 64 == 0) sched_yield();
  }
  return NULL;
}
static void two_wakers_and_a_runner(void **state) {
  (void)state;
  for (int round = 0; round < scale(20); round++) {
    race_begins();
    unsigned long n = 10000;
    pthread_t t[3];
    assert_int_equal(pthread_create(&t[0], NULL, runner, (void *)(uintptr_t)(2 * n)), 0);
    for (int i = 1; i < 3; i++)
      assert_int_equal(pthread_create(&t[i], NULL, waker, (void *)(uintptr_t)n), 0);
    for (int i = 1; i < 3; i++) pthread_join(t[i], NULL);
    while (tp_load(&received, acquire) != 2 * n) sched_yield(); /* nothing more is to come */
    if (tp_state_cancel(&task) == TP_CANCEL_SUBMIT) submit();
    pthread_join(t[0], NULL);
    assert_int_equal(tp_load(&wrong, relaxed), 0);
    assert_int_equal(tp_load(&runs, relaxed), tp_load(&submits, relaxed));
  }
}

/* --- rounds of one step each: two threads meet, do it at the same time, and the result is looked at */

static _Atomic unsigned arrived;
static void meet(unsigned *round) {
  unsigned goal = 2 * ++*round;
  tp_add(&arrived, 1, acq_rel);
  for (int spins = 0; tp_load(&arrived, acquire) < goal;)
    if (++spins > 200) sched_yield();
}

typedef struct {
  int (*step)(void);
  int n;
  _Atomic int outcome;
} side;

static void *other_side(void *arg) {
  side *s = arg;
  unsigned round = 0;
  for (int i = 0; i < s->n; i++) {
    meet(&round);
    tp_store(&s->outcome, s->step(), relaxed);
    meet(&round);
  }
  return NULL;
}

/* `check` sees both outcomes and the word after them. Not called beside other_side's use of it. */
static void together(uint64_t from, int (*a)(void), int (*b)(void), bool (*check)(int, int)) {
  side s = {.step = b, .n = scale(10000)};
  unsigned round = 0;
  int bad = 0;
  pthread_t t;
  tp_store(&arrived, 0, relaxed);
  assert_int_equal(pthread_create(&t, NULL, other_side, &s), 0);
  for (int i = 0; i < s.n; i++) {
    tp_store(&task, from, relaxed);
    meet(&round);
    int mine = a();
    meet(&round);
    bad += !check(mine, tp_load(&s.outcome, relaxed));
  }
  pthread_join(t, NULL);
  assert_int_equal(bad, 0);
}

static int do_wake(void) {
  return tp_state_wake(&task);
}
static int do_pause(void) {
  return tp_state_pause(&task);
}
static int do_cancel(void) {
  return tp_state_cancel(&task);
}
static int do_end(void) {
  return tp_state_end(&task);
}
static int do_join(void) {
  return tp_state_join(&task);
}
static int do_unjoin(void) {
  return tp_state_unjoin(&task);
}
static int do_unref(void) {
  return tp_state_unref(&task);
}
static int do_try_ref(void) {
  return tp_state_try_ref(&task);
}

static unsigned now(void) {
  return tp_lifecycle(tp_load(&task, relaxed));
}
static bool one_submits(int a, int b) {
  return a + b == TP_WAKE_SUBMIT && now() == TP_SCHEDULED;
}
static bool pause_or_wake_submits(int pause, int wake) {
  return (pause == TP_PAUSE_AGAIN) + (wake == TP_WAKE_SUBMIT) == 1 &&
         tp_load(&task, relaxed) == TP_REF_ONE + TP_SCHEDULED;
}
static bool pause_or_cancel_submits(int pause, int cancel) {
  if (pause == TP_PAUSE_CANCELLED) return cancel == TP_CANCEL_ASKED && now() == TP_RUNNING;
  return pause == TP_PAUSE_IDLE && cancel == TP_CANCEL_SUBMIT && now() == TP_SCHEDULED;
}
static bool wake_or_cancel_submits(int wake, int cancel) {
  return (wake == TP_WAKE_SUBMIT) + (cancel == TP_CANCEL_SUBMIT) == 1 && now() == TP_SCHEDULED;
}
static bool cancelled_or_too_late(int end, int cancel) {
  bool marked = tp_load(&task, relaxed) & TP_CANCELLED;
  return end == TP_END_FREE && now() == TP_COMPLETE && marked == (cancel != TP_CANCEL_TOO_LATE);
}
static bool told_if_joined(int end, int joined) {
  return end == (joined ? TP_END_TELL : TP_END_KEPT) &&
         tp_refs(tp_load(&task, relaxed)) == (joined ? 2 : 1);
}
static bool told_unless_unjoined(int end, int unjoined) {
  return end == (unjoined ? TP_END_KEPT : TP_END_TELL);
}
static bool one_frees(int end, int unref) {
  return (end == TP_END_FREE) + (unref == true) == 1 && tp_refs(tp_load(&task, relaxed)) == 0;
}
static bool freed_or_found(int freed, int found) {
  return freed == !found && tp_refs(tp_load(&task, relaxed)) == (found ? 1 : 0);
}

static void exactly_one_submits(void **state) {
  (void)state;
  together(TP_REF_ONE + TP_IDLE, do_wake, do_wake, one_submits);
  together(TP_REF_ONE + TP_RUNNING, do_pause, do_wake, pause_or_wake_submits);
  together(TP_REF_ONE + TP_RUNNING, do_pause, do_cancel, pause_or_cancel_submits);
  together(TP_REF_ONE + TP_IDLE, do_wake, do_cancel, wake_or_cancel_submits);
}
static void the_end_is_told_and_frees_once(void **state) {
  (void)state;
  together(TP_REF_ONE + TP_RUNNING, do_end, do_cancel, cancelled_or_too_late);
  together(2 * TP_REF_ONE + TP_RUNNING, do_end, do_join, told_if_joined);
  together(2 * TP_REF_ONE + TP_RUNNING + TP_JOIN_INTEREST, do_end, do_unjoin, told_unless_unjoined);
  together(2 * TP_REF_ONE + TP_RUNNING, do_end, do_unref, one_frees);
  together(TP_REF_ONE + TP_COMPLETE, do_unref, do_try_ref, freed_or_found);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_parts_of_a_word),
      cmocka_unit_test(start),
      cmocka_unit_test(pause_),
      cmocka_unit_test(wake),
      cmocka_unit_test(cancel),
      cmocka_unit_test(end),
      cmocka_unit_test(join_and_unjoin),
      cmocka_unit_test(references),
      cmocka_unit_test(a_shield_holds_cancellation_off),
      cmocka_unit_test(no_wake_is_lost),
      cmocka_unit_test(two_wakers_and_a_runner),
      cmocka_unit_test(exactly_one_submits),
      cmocka_unit_test(the_end_is_told_and_frees_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
