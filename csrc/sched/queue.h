/* queue.h - the global queue of one priority: anybody posts, workers take batches.
 *
 *   outside threads --> inlet (one lock for 1/16 of the threads): a list
 *                         | the first work of a list also lists its inlet: one CAS
 *                         v
 *                      listed inlets (a Treiber stack), taken whole by one exchange and reversed
 *                         | each one's list is appended as it is
 *                         v
 *   workers' overflow -> list (under a lock) ----fair share----> a worker's ring
 *
 * Why the stack holds inlets and not works: a thread outside needs a lock of its own kind anyway, for the
 * record of its task. Under that lock a push is two plain stores; the line of the stack's top, over which
 * all producers and workers would fight, is touched once for a whole list; and the lists are in order, so
 * that nobody has to walk a million works to reverse them (measured: 60 ns a task with 4 producers became 40).
 *
 * A list is cut into pieces of TP_BATCH_MOST, linked by their first works, so that a batch is taken in two
 * steps whatever its length: under the lock the piece, and outside it the walk along the piece. The works
 * are mostly in another core's cache; so that their lines come several at a time and not one after the
 * other, each has a pointer to the one TP_AHEAD further on, for prefetching alone: it may be stale.
 *
 * G1  A stack that is only ever taken whole has no ABA.
 * G2  Between the exchange and the end of the critical section nobody else sees those items: whoever takes
 *     must afterwards post what it leaves (sched/post.h), as if it had just come.
 * G3  `first` changes only under the lock; a look at it without the lock may be old, which the sleep
 *     protocol's fences make harmless (docs/SLEEP.md). `length` is a hint for the fair share: it is lowered
 *     after the walk.
 * G4  What is in the list is older than what is in the inlets, so the order of one inlet is kept though
 *     they are only emptied when the list is short.
 * G5  An inlet whose list is not empty is listed, or was taken from the stack by somebody who is going to
 *     empty it: `listed` is set with the push that finds it clear, and cleared with the list, both under the
 *     inlet's lock.
 *
 * Depends on: sched/work.h, sync/lock.h.
 */
#ifndef TP_SCHED_QUEUE_H
#define TP_SCHED_QUEUE_H

#include "sched/work.h"
#include "sync/lock.h"

typedef enum { TP_HIGH, TP_NORMAL, TP_LOW, TP_PRIORITIES } tp_priority;

enum {
  TP_BATCH_MOST = 32, /* works in a piece, and in a batch */
  TP_AHEAD = 8,       /* works between a walk and its prefetch: less than a piece */
  TP_INLETS = 16,
};

/* Pieces, first to last. */
typedef struct tp_pieces {
  tp_work *first, *last; /* the first works of the first and of the last piece */
  size_t length;         /* works in all of them */
} tp_pieces;

/* What came in by one inlet for one queue. All but `next` under the inlet's lock. */
typedef struct tp_arrivals {
  struct tp_arrivals *next; /* in the stack of its queue; its lister's, then its taker's */
  struct tp_inlet *inlet;   /* constant */
  bool listed;              /* G5 */
  tp_pieces pieces;
  tp_work *newest;
  tp_work *recent[TP_AHEAD]; /* the last ones of the list, by their number */
} tp_arrivals;

/* Where threads without a seat put work. The lock also guards what they need for it (task/task.c). */
typedef struct tp_inlet {
  TP_ALIGNED tp_lock lock;
  unsigned number; /* constant */
  _Atomic unsigned
      wakers; /* that have left the lock and are still waking somebody (sched/post.c) */
  tp_arrivals of[TP_PRIORITIES];
} tp_inlet;

typedef struct tp_queue {
  TP_ALIGNED _Atomic(tp_arrivals *) listed; /* G1 */
  TP_ALIGNED tp_lock lock;
  _Atomic(tp_work *) first; /* of the first piece; under the lock but for looking (G3) */
  tp_work *last;            /* first of the last piece; under the lock */
  _Atomic size_t length;    /* G3 */
} tp_queue;

void tp_inlet_init(tp_inlet *in, unsigned number);

/* [any, holding the inlet's lock] Put work into the queue q of priority p. As good as a barrier before the
 * post: the inlet was listed by a seq-cst operation that comes before this returns. */
void tp_queue_put(tp_queue *q, tp_inlet *in, tp_priority p, tp_work *work);

/* [W] Append a batch (overflow of a ring), and empty the chain. Not a barrier: the caller posts. */
void tp_queue_append(tp_queue *q, tp_chain *chain);

/* [W] Take the fair share of one of `workers`, at most `most` and at most a piece, into the empty `batch`;
 * returns how many are left in the list, which the caller has to post (G2). What is still in an inlet was
 * posted by those who put it there. */
size_t tp_queue_take(tp_queue *q, unsigned workers, unsigned most, tp_chain *batch);

/* [any] Whether there is something. Seq-cst, for the last look before sleeping. */
static inline bool tp_queue_any(const tp_queue *q) {
  return tp_load(&q->listed, seq_cst) || tp_load(&q->first, seq_cst);
}

#endif
