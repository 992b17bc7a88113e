/* latch.h - the four-state latch on which a thread sleeps; the word itself is the futex.
 *
 *    UNSET --sleepy()--> SLEEPY --sleep()--> SLEEPING
 *      \                   |                   |
 *       +------------------+------- set() -----+----> SET --reset()--> UNSET
 *
 * SLEEPY says "about to block, one more look": a set() in that window makes sleep() fail, so no
 * wake-up can fall between the look and the block. Whoever gets SLEEPING back from set() owns the wake-up.
 * Protocol: docs/SLEEP.md. Depends on: sync/futex.h. Used by: sched/, task/.
 */
#ifndef TP_SYNC_LATCH_H
#define TP_SYNC_LATCH_H

#include "base/atomic.h"
#include "sync/futex.h"

enum { TP_UNSET = 0, TP_SLEEPY = 1, TP_SLEEPING = 2, TP_SET = 3 };

typedef _Atomic uint32_t tp_latch;

/* [W] UNSET -> SLEEPY. False: it was SET, and what the setter did is acquired.
 * Seq-cst: later looks for work come after it (S2). */
static inline bool tp_latch_sleepy(tp_latch *l) {
  uint32_t was = TP_UNSET;
  return atomic_compare_exchange_strong(l, &was, TP_SLEEPY);
}

/* [W] SLEEPY -> SLEEPING. False: it was SET, and what the setter did is acquired. */
static inline bool tp_latch_sleep(tp_latch *l) {
  uint32_t was = TP_SLEEPY;
  return atomic_compare_exchange_strong(l, &was, TP_SLEEPING);
}

/* [any] -> SET; returns what it was. Releases what the setter did; pairs with tp_latch_is_set.
 * When it returns TP_SLEEPING the caller must tp_latch_wake. */
static inline uint32_t tp_latch_set(tp_latch *l) {
  return tp_swap(l, TP_SET, seq_cst);
}

/* [any] May be called when the latch's memory is already gone: the address is only a name. */
static inline void tp_latch_wake(tp_latch *l) {
  tp_futex_wake(l, 1);
}

/* [any] Both. After the swap the latch's memory may be gone. */
static inline void tp_latch_open(tp_latch *l) {
  if (tp_latch_set(l) == TP_SLEEPING) tp_latch_wake(l);
}

/* [any] Acquires what the setter did before. */
static inline bool tp_latch_is_set(const tp_latch *l) {
  return tp_load(l, acquire) == TP_SET;
}

/* [W] Block while SLEEPING; deadline_ns 0 = without limit. */
static inline void tp_latch_block(tp_latch *l, uint64_t deadline_ns) {
  while (tp_load(l, acquire) == TP_SLEEPING) {
    if (!deadline_ns) {
      tp_futex_wait(l, TP_SLEEPING);
    } else {
      if (tp_now_ns() >= deadline_ns) return;
      tp_futex_wait_until(l, TP_SLEEPING, deadline_ns);
    }
  }
}

/* [W] Back to UNSET, whatever it was. */
static inline void tp_latch_reset(tp_latch *l) {
  tp_store(l, TP_UNSET, relaxed); /* only its owner looks for UNSET */
}

#endif
