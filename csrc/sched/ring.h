/* ring.h - a worker's queue of 256 tasks: one owner at the tail, owner and thieves at the head.
 *
 * Depends on: sched/work.h, base/. Used by: sched/find.c, sched/post.c.
 *
 *            steal      real                tail         head = steal | real, 32 bits each
 *   ----------+----------+-------------------+-------
 *   free      | a thief  |  queued           |  free     steal == real: no thief is at work
 *             | copies   |                   |
 *
 * Q1  steal <= real <= tail <= steal + 256, as distances (the numbers wrap).
 * Q2  [steal, real) belongs to one thief until it moves steal up to real; it always does, whatever has
 *     happened to real meanwhile. So there is at most one thief, and what it copies is not overwritten.
 * Q3  Only the owner writes tail and the slots; a slot is written before tail passes it (release), and is
 *     read by those who have seen that tail (acquire).
 * Q4  Everything pushed is taken exactly once: whoever moves `real` over it by CAS has it.
 *
 * 32 bits, not 16: with 16 a thief that is stalled while 65,536 tasks pass finds the same head again
 * and its CAS succeeds wrongly.
 */
#ifndef TP_SCHED_RING_H
#define TP_SCHED_RING_H

#include "base/atomic.h"
#include "sched/work.h"

enum { TP_RING_SLOTS = 256 };

typedef struct tp_ring {
  TP_ALIGNED _Atomic uint64_t head; /* steal in the upper half, real in the lower */
  TP_ALIGNED _Atomic uint32_t tail; /* Q3 */
  _Atomic(tp_work *) slot[TP_RING_SLOTS];
} tp_ring;

/* [W] Append. When the ring is full, `work` and the older half of the ring, or only `work` while a thief is
 * copying, are put into `overflow` instead. Wait-free but for the one CAS of an overflow. */
void tp_ring_push(tp_ring *r, tp_work *work, tp_chain *overflow);

/* [W] The oldest, or NULL. One CAS. */
tp_work *tp_ring_pop(tp_ring *r);

/* [W] How many can be pushed without overflow. */
unsigned tp_ring_room(const tp_ring *r);

/* [thief, owner of `to`] Take half of `from` (rounded up): the newest of them is returned, the others are put
 * into `to`. NULL: empty, another thief is at work, or no room in `to`. */
tp_work *tp_ring_steal(tp_ring *from, tp_ring *to);

/* [any] How many seemed to be queued. Acquire: callers that must not miss anything have a fence before. */
static inline unsigned tp_ring_length(const tp_ring *r) {
  uint32_t real = (uint32_t)tp_load(&r->head, acquire);
  return tp_load(&r->tail, acquire) - real; /* a thread that stalls in between may see too many */
}
static inline bool tp_ring_empty(const tp_ring *r) {
  return tp_ring_length(r) == 0;
}

#endif
