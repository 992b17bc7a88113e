#include "sched/ring.h"

#include "base/assert.h"

enum { MASK = TP_RING_SLOTS - 1, HALF = TP_RING_SLOTS / 2 };

static uint64_t pack(uint32_t steal, uint32_t real) {
  return (uint64_t)steal << 32 | real;
}
static uint32_t steal_of(uint64_t head) {
  return (uint32_t)(head >> 32);
}
static uint32_t real_of(uint64_t head) {
  return (uint32_t)head;
}

unsigned tp_ring_room(const tp_ring *r) {
  /* Acquire: pairs with the thief's release of [steal, real), whose slots may now be overwritten. */
  uint64_t head = tp_load(&r->head, acquire);
  return TP_RING_SLOTS - (tp_load(&r->tail, relaxed) - steal_of(head)); /* tail is our own */
}

/* The ring is full and no thief is at work: take the older half out, if nobody was faster. */
static bool overflow_half(tp_ring *r, uint64_t head, tp_chain *overflow) {
  uint32_t real = real_of(head);
  /* Release: a thief that sees this head sees a tail that is not behind it. */
  if (!tp_cas(&r->head, &head, pack(real + HALF, real + HALF), release)) return false;
  for (uint32_t i = 0; i < HALF; i++)
    tp_chain_append(overflow, tp_load(&r->slot[(real + i) & MASK], relaxed));
  return true;
}

void tp_ring_push(tp_ring *r, tp_work *work, tp_chain *overflow) {
  uint32_t tail = tp_load(&r->tail, relaxed); /* our own */
  for (;;) {
    uint64_t head = tp_load(&r->head, acquire); /* pairs with the release in tp_ring_steal */
    TP_ASSERT(tail - steal_of(head) <= TP_RING_SLOTS, "Q1");
    if (tp_likely(tail - steal_of(head) < TP_RING_SLOTS)) {
      tp_store(&r->slot[tail & MASK], work, relaxed); /* published by the next store */
      tp_store(&r->tail, tail + 1, release); /* Q3; pairs with the acquire in tp_ring_steal */
      return;
    }
    if (steal_of(head) != real_of(head) || overflow_half(r, head, overflow)) {
      tp_chain_append(overflow, work);
      return;
    }
    /* A thief has begun since: it makes room. */
  }
}

tp_work *tp_ring_pop(tp_ring *r) {
  uint64_t head = tp_load(&r->head, relaxed);
  uint32_t tail = tp_load(&r->tail, relaxed);
  for (;;) {
    uint32_t real = real_of(head);
    if (real == tail) return NULL;
    uint64_t next =
        steal_of(head) == real ? pack(real + 1, real + 1) : pack(steal_of(head), real + 1);
    /* Release: a thief that sees this head sees a tail that is not behind it. The slot itself was written
     * by this thread, or handed over with the seat. */
    if (tp_likely(tp_cas(&r->head, &head, next, release)))
      return tp_load(&r->slot[real & MASK], relaxed);
  }
}

tp_work *tp_ring_steal(tp_ring *from, tp_ring *to) {
  if (tp_ring_room(to) < HALF) return NULL;
  uint64_t head = tp_load(&from->head, acquire);
  uint32_t n, first;
  for (;;) {
    if (steal_of(head) != real_of(head)) return NULL; /* Q2: one thief at a time */
    uint32_t tail = tp_load(&from->tail, acquire);    /* Q3 */
    first = real_of(head);
    n = tail - first;
    n -= n / 2;
    if (n == 0) return NULL;
    if (n > HALF) n = HALF; /* tail is newer than head: the CAS is going to fail */
    /* Acquire for the next round's view; the claim itself publishes nothing. */
    if (tp_cas(&from->head, &head, pack(first, first + n), acquire)) break;
  }
  uint32_t tail = tp_load(&to->tail, relaxed);
  for (uint32_t i = 0; i < n; i++)
    tp_store(&to->slot[(tail + i) & MASK], tp_load(&from->slot[(first + i) & MASK], relaxed),
             relaxed);
  /* Q2: give the slots back. The owner may have moved `real` on meanwhile. Release: our reads of the
   * slots come before the owner's next writes to them (tp_ring_push, acquire). */
  head = pack(first, first + n);
  while (!tp_cas_weak(&from->head, &head, pack(real_of(head), real_of(head)), release)) {
  }
  /* The last one is for the caller to run: it is not published. */
  tp_work *work = tp_load(&to->slot[(tail + n - 1) & MASK], relaxed);
  if (n > 1) tp_store(&to->tail, tail + n - 1, release); /* Q3 */
  return work;
}
