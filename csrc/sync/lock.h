/* lock.h - a mutex of one word for short critical sections.
 *
 * 0 free, 1 held, 2 held and somebody waits (Drepper, "Futexes are tricky", mutex 2). Lock and
 * unlock are one atomic operation each while nobody contends. Who holds one is in a critical section: a fault there
 * is not recovered (docs/CRASHES.md, X3). Depends on: sync/futex.h, base/critical.h.
 */
#ifndef TP_SYNC_LOCK_H
#define TP_SYNC_LOCK_H

#include "base/atomic.h"
#include "base/critical.h"
#include "sync/futex.h"

enum { TP_LOCK_SPINS = 50 };

typedef struct tp_lock {
  _Atomic uint32_t word;
} tp_lock;

static inline bool tp_lock_try(tp_lock *l) {
  uint32_t free = 0;
  tp_critical_begin();
  bool had = tp_cas(&l->word, &free, 1, acquire); /* pairs with the release in tp_lock_release */
  if (!had) tp_critical_end();
  return had;
}

static inline void tp_lock_acquire(tp_lock *l) {
  if (tp_lock_try(l)) return;
  for (int i = 0; i < TP_LOCK_SPINS; i++) { /* most sections are over sooner than a sleep begins */
    tp_pause();
    if (tp_load(&l->word, relaxed) == 0 && tp_lock_try(l)) return;
  }
  tp_critical_begin();
  /* From here on the word is left at 2: the holder then knows that it has to wake somebody. */
  while (tp_swap(&l->word, 2, acquire) != 0) tp_futex_wait(&l->word, 2);
}

static inline void tp_lock_release(tp_lock *l) {
  if (tp_swap(&l->word, 0, release) == 2) tp_futex_wake(&l->word, 1);
  tp_critical_end();
}

#endif
