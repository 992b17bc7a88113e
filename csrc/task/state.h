/* state.h - the 64-bit state of a task, and every transition it can make: one CAS each.
 *
 * Diagram, rules K1..K8 and proofs: docs/TASKS.md. Depends on: base/atomic.h. Used by: task/task.c.
 *
 *   bits  0..7   lifecycle  IDLE, SCHEDULED, RUNNING, COMPLETE
 *   bits  8..15  flags      notified, cancelled, join interest, join claimed
 *   bits 16..23  shield     depth; cancellation takes effect at 0
 *   bits 24..47  references
 *   bits 48..55  code       why it failed, negated (0: it did not); the runner's
 *   bits 56..59  constant   priority, blocking, has an `end`: from the spawn on
 */
#ifndef TP_TASK_STATE_H
#define TP_TASK_STATE_H

#include "base/assert.h"
#include "base/atomic.h"

typedef _Atomic uint64_t tp_state;

#define TP_LIFECYCLE_MASK 0xffull
#define TP_NOTIFIED       (1ull << 8)  /* woken while running: to be polled again */
#define TP_CANCELLED      (1ull << 9)  /* cancellation was asked for; never cleared */
#define TP_JOIN_INTEREST  (1ull << 10) /* somebody is to be told of the end: task->done is valid */
#define TP_JOIN_CLAIMED   (1ull << 11) /* somebody fills in task->done, or has */
#define TP_SHIELD_ONE     (1ull << 16)
#define TP_SHIELD_MASK    (0xffull << 16)
#define TP_REF_ONE        (1ull << 24)
#define TP_REF_MASK       (0xffffffull << 24)

#define TP_CODE_SHIFT     48
#define TP_CODE_MASK      (0xffull << TP_CODE_SHIFT)
#define TP_PRIORITY_SHIFT 56 /* tp_priority */
#define TP_BLOCKING       (1ull << 58)
#define TP_HAS_END        (1ull << 59)

enum { TP_IDLE = 0, TP_SCHEDULED = 1, TP_RUNNING = 2, TP_COMPLETE = 3 };

static inline unsigned tp_lifecycle(uint64_t s) {
  return (unsigned)(s & TP_LIFECYCLE_MASK);
}
static inline uint64_t tp_refs(uint64_t s) {
  return (s & TP_REF_MASK) / TP_REF_ONE;
}
static inline int tp_code(uint64_t s) {
  return -(int)((s & TP_CODE_MASK) >> TP_CODE_SHIFT);
}
static inline unsigned tp_priority_of(uint64_t s) {
  return (unsigned)(s >> TP_PRIORITY_SHIFT & 3);
}
/* K5: asked for, and no shield holds it off. */
static inline bool tp_is_cancelled(uint64_t s) {
  return (s & TP_CANCELLED) && !(s & TP_SHIELD_MASK);
}
static inline uint64_t tp_with(uint64_t s, unsigned lifecycle) {
  return (s & ~TP_LIFECYCLE_MASK) | lifecycle;
}

/* Each loop: load, decide, CAS; acq_rel, so that each transition sees all that came before it in the
 * word's order, and releases what its thread did to the task. */
#define TP_TRANSITION(state, old, new, decide)                                                     \
  uint64_t old = tp_load(state, acquire), new;                                                     \
  do {                                                                                             \
    decide                                                                                         \
  } while (!atomic_compare_exchange_weak_explicit(state, &old, new, memory_order_acq_rel,          \
                                                  memory_order_acquire))

typedef enum { TP_START_RUN, TP_START_CANCELLED } tp_start;

/* [runner] SCHEDULED -> RUNNING. CANCELLED: it must not be polled, but ended. K1: a task in a queue is
 * SCHEDULED or has yielded, is in one queue only, and whoever took it out is its only runner. One that
 * has yielded is RUNNING already (K2), so the word need not be written. */
__attribute__((warn_unused_result)) static inline tp_start tp_state_start(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_lifecycle(old) == TP_RUNNING) break;
    TP_ASSERT(tp_lifecycle(old) == TP_SCHEDULED, "K1");
    new = tp_with(old, TP_RUNNING) & ~TP_NOTIFIED;
  });
  return tp_is_cancelled(old) ? TP_START_CANCELLED : TP_START_RUN;
}

typedef enum { TP_PAUSE_IDLE, TP_PAUSE_AGAIN, TP_PAUSE_CANCELLED } tp_pause_outcome;

/* [runner] The poll returned pending. IDLE: whoever wakes it next schedules it, the runner may not touch
 * it any more. AGAIN: it was woken meanwhile and is SCHEDULED now; the runner queues it. CANCELLED: still
 * RUNNING, to be ended. */
__attribute__((warn_unused_result)) static inline tp_pause_outcome tp_state_pause(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    TP_ASSERT(tp_lifecycle(old) == TP_RUNNING, "K2");
    if (tp_is_cancelled(old)) return TP_PAUSE_CANCELLED;
    new = old &TP_NOTIFIED ? tp_with(old, TP_SCHEDULED) & ~TP_NOTIFIED : tp_with(old, TP_IDLE);
  });
  return old & TP_NOTIFIED ? TP_PAUSE_AGAIN : TP_PAUSE_IDLE;
}

typedef enum { TP_WAKE_NOTHING, TP_WAKE_SUBMIT } tp_wake_outcome;

/* [any, holding a reference] SUBMIT: it is SCHEDULED now, the caller queues it (K3: exactly one does). */
__attribute__((warn_unused_result)) static inline tp_wake_outcome tp_state_wake(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_lifecycle(old) == TP_COMPLETE) return TP_WAKE_NOTHING;
    /* A poll that is coming anyway is not enough: it must see what the waker did before. So the word is
     * written in every case; a mere load could come before the waker's own stores (K3). */
    if (tp_lifecycle(old) == TP_IDLE)
      new = tp_with(old, TP_SCHEDULED);
    else if (tp_lifecycle(old) == TP_RUNNING)
      new = old | TP_NOTIFIED;
    else
      new = old;
  });
  return tp_lifecycle(old) == TP_IDLE ? TP_WAKE_SUBMIT : TP_WAKE_NOTHING;
}

typedef enum { TP_CANCEL_TOO_LATE, TP_CANCEL_ASKED, TP_CANCEL_SUBMIT } tp_cancel_outcome;

/* [any, holding a reference] SUBMIT: it was waiting and is SCHEDULED now, so that a worker ends it. */
__attribute__((warn_unused_result)) static inline tp_cancel_outcome
tp_state_cancel(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_lifecycle(old) == TP_COMPLETE) return TP_CANCEL_TOO_LATE;
    new = old | TP_CANCELLED;
    if (tp_lifecycle(old) == TP_RUNNING)
      new |= TP_NOTIFIED;
    else if (tp_lifecycle(old) == TP_IDLE)
      new = tp_with(new, TP_SCHEDULED); /* a shielded one is polled */
  });
  return tp_lifecycle(old) == TP_IDLE ? TP_CANCEL_SUBMIT : TP_CANCEL_ASKED;
}

typedef enum { TP_END_KEPT, TP_END_TELL, TP_END_FREE } tp_end_outcome;

/* [runner] RUNNING -> COMPLETE, giving up the task's own reference. TELL: somebody wants to know; the
 * reference is kept until that is done. FREE: that was the last reference. */
__attribute__((warn_unused_result)) static inline tp_end_outcome tp_state_end(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    TP_ASSERT(tp_lifecycle(old) == TP_RUNNING, "K2");
    new = tp_with(old, TP_COMPLETE);
    if (!(old & TP_JOIN_INTEREST)) new -= TP_REF_ONE;
  });
  if (old & TP_JOIN_INTEREST) return TP_END_TELL;
  return tp_refs(old) == 1 ? TP_END_FREE : TP_END_KEPT;
}

typedef enum { TP_CLAIMED, TP_CLAIM_TAKEN, TP_CLAIM_TOO_LATE } tp_claim_outcome;

/* [any, holding a reference] CLAIMED: the caller alone may fill in task->done, and then join. */
__attribute__((warn_unused_result)) static inline tp_claim_outcome tp_state_claim(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_lifecycle(old) == TP_COMPLETE) return TP_CLAIM_TOO_LATE;
    if (old & TP_JOIN_CLAIMED) return TP_CLAIM_TAKEN;
    new = old | TP_JOIN_CLAIMED;
  });
  return TP_CLAIMED;
}

/* [who has claimed] task->done has been filled in. False: it is complete, nobody will be told. */
__attribute__((warn_unused_result)) static inline bool tp_state_join(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_lifecycle(old) == TP_COMPLETE) return false;
    new = old | TP_JOIN_INTEREST;
  });
  return true;
}

/* [who has joined] Take it back. False: it is complete; the teller is calling or has called done. */
__attribute__((warn_unused_result)) static inline bool tp_state_unjoin(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_lifecycle(old) == TP_COMPLETE) return false;
    new = old & ~(TP_JOIN_INTEREST | TP_JOIN_CLAIMED);
  });
  return true;
}

enum { TP_SHIELDS_MOST = TP_SHIELD_MASK / TP_SHIELD_ONE };

/* [runner] One shield more, or less. False: there are as many as can be, or none; nothing has changed. */
__attribute__((warn_unused_result)) static inline bool tp_state_shield(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if ((old & TP_SHIELD_MASK) == TP_SHIELD_MASK) return false;
    new = old + TP_SHIELD_ONE;
  });
  return true;
}
__attribute__((warn_unused_result)) static inline bool tp_state_unshield(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (!(old & TP_SHIELD_MASK)) return false;
    new = old - TP_SHIELD_ONE;
  });
  return true;
}

/* [runner] The code of its end. */
static inline void tp_state_set_code(tp_state *state, int code) {
  uint64_t bits = (uint64_t)(uint8_t)-code << TP_CODE_SHIFT;
  TP_TRANSITION(state, old, new, { new = (old & ~TP_CODE_MASK) | bits; });
}

/* [spawner] SCHEDULED -> COMPLETE: it was not started after all. */
static inline void tp_state_abandon(tp_state *state) {
  TP_TRANSITION(state, old, new, { new = tp_with(old, TP_COMPLETE); });
}

/* [any, holding a reference] */
static inline void tp_state_ref(tp_state *state) {
  uint64_t old = tp_add(state, TP_REF_ONE, relaxed); /* the reference we hold keeps it alive */
  TP_ASSERT(tp_refs(old) > 0 && tp_refs(old) < 0xffffff, "K7");
  (void)old;
}

/* [any] From a number only: true if it is alive, and then with a reference. */
__attribute__((warn_unused_result)) static inline bool tp_state_try_ref(tp_state *state) {
  TP_TRANSITION(state, old, new, {
    if (tp_refs(old) == 0) return false;
    new = old + TP_REF_ONE;
  });
  return true;
}

/* [any, holding a reference] True: it was the last one, free the task. */
__attribute__((warn_unused_result)) static inline bool tp_state_unref(tp_state *state) {
  uint64_t old =
      tp_sub(state, TP_REF_ONE, acq_rel); /* sees what other holders did, for the one who frees */
  TP_ASSERT(tp_refs(old) > 0, "K7");
  return tp_refs(old) == 1;
}

#endif
