/* queue.h - the global queue of one priority: anybody posts, workers take batches.
 *
 *   outside threads --one CAS--> injected (a Treiber stack)
 *                                   | taken whole by one exchange, reversed: first in, first out
 *   workers' overflow ----------> list (under a lock) ----fair share----> a worker's ring
 *
 * G1  A stack that is only ever taken whole has no ABA.
 * G2  Between the exchange and the append nobody else sees those items: whoever takes must afterwards
 *     post what it leaves (sched/post.h), as if it had just come.
 * G3  `length` changes only under the lock; a look at it without the lock may be old, which the sleep
 *     protocol's fences make harmless (docs/SLEEP.md).
 *
 * Depends on: sched/work.h, sync/lock.h.
 */
#ifndef TP_SCHED_QUEUE_H
#define TP_SCHED_QUEUE_H

#include "sched/work.h"
#include "sync/lock.h"

typedef struct tp_queue {
  TP_ALIGNED _Atomic(tp_work *) injected;
  TP_ALIGNED tp_lock lock;
  tp_chain list;         /* under the lock */
  _Atomic size_t length; /* list.length, for looking (G3) */
} tp_queue;

/* [any] Post a chain, first in first out, with one CAS, which is also a full barrier. */
static inline void tp_queue_inject(tp_queue *q, tp_work *work) {
  tp_work *top = tp_load(&q->injected, relaxed); /* a guess, the CAS checks it */
  do work->next = top;
  while (!tp_cas_weak(&q->injected, &top, work,
                      seq_cst)); /* releases the work; pairs with take's swap */
}

/* [W] Append a batch (overflow of a ring). Not a barrier: the caller posts. */
void tp_queue_append(tp_queue *q, tp_chain *chain);

/* [W] Take the fair share of one of `workers`, at most `most`, into `batch`; returns how many it left. */
size_t tp_queue_take(tp_queue *q, unsigned workers, unsigned most, tp_chain *batch);

/* [any] Whether there is something. Seq-cst, for the last look before sleeping. */
static inline bool tp_queue_any(const tp_queue *q) {
  return tp_load(&q->injected, seq_cst) || tp_load(&q->length, seq_cst);
}

#endif
