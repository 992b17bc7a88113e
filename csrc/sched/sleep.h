/* sleep.h - decides when a worker blocks and who wakes it.
 *
 * Protocol, rules S1..S9, proof, and what fails without each step: docs/SLEEP.md; model: csrc/model.
 * Depends on: sync/latch.h, base/. Used by: sched/post.c, sched/worker.c, sched/fork.c.
 *
 * One word, so that one read-modify-write moves a worker between states:
 *   bits  0..15  sleeping   blocked in the kernel, or about to
 *   bits 16..31  inactive   idle + sleepy + sleeping (>= sleeping)
 *   bits 32..63  JEC        even: somebody got sleepy since the last post; odd: work came since
 */
#ifndef TP_SCHED_SLEEP_H
#define TP_SCHED_SLEEP_H

#include "base/assert.h"
#include "base/atomic.h"

#define TP_SLEEPING_ONE 1ull
#define TP_INACTIVE_ONE (1ull << 16)
#define TP_JEC_ONE      (1ull << 32)

static inline unsigned tp_sleeping_of(uint64_t counters) {
  return (unsigned)(counters & 0xffff);
}
/* Searching or blocked. */
static inline unsigned tp_inactive_of(uint64_t counters) {
  return (unsigned)(counters >> 16 & 0xffff);
}
/* Searching, not blocked. S1: a waker may not yet have counted down for one who already runs again, and then
 * more seem to sleep than are inactive: nobody idles. */
static inline unsigned tp_idle_of(uint64_t counters) {
  unsigned sleeping = tp_sleeping_of(counters), inactive = tp_inactive_of(counters);
  return inactive > sleeping ? inactive - sleeping : 0;
}

/* Bit i stands for seat i; 64 seats a word, any number of words. */
typedef struct tp_bitmap {
  unsigned words;
  _Atomic uint64_t *word;
} tp_bitmap;

typedef struct tp_sleep {
  TP_ALIGNED _Atomic uint64_t counters;
  tp_bitmap sleepers, waiters; /* the words are on lines of their own */
} tp_sleep;

/* [any] For that many seats. 0 or ERR_MALLOC_FAILED. */
int tp_sleep_init(tp_sleep *s, unsigned seats);
void tp_sleep_free(tp_sleep *s);

/* --- bitmaps. All seq-cst: they are the store of a store-then-look on both sides. */
static inline void tp_bitmap_set(tp_bitmap *b, unsigned i) {
  tp_or(&b->word[i / 64], 1ull << i % 64, seq_cst);
}
/* Whether it was set: then the caller has claimed it. */
static inline bool tp_bitmap_clear(tp_bitmap *b, unsigned i) {
  return tp_and(&b->word[i / 64], ~(1ull << i % 64), seq_cst) >> i % 64 & 1;
}
/* Claim the lowest set bit at or after `from`; -1: none. */
int tp_bitmap_claim(tp_bitmap *b, unsigned from);
bool tp_bitmap_any(const tp_bitmap *b);

/* --- the counters' moves, each one seq-cst read-modify-write */
static inline void tp_sleep_idle_begins(tp_sleep *s) {
  tp_add(&s->counters, TP_INACTIVE_ONE, seq_cst);
}
/* Returns the counters after it. */
static inline uint64_t tp_sleep_idle_ends(tp_sleep *s) {
  return tp_sub(&s->counters, TP_INACTIVE_ONE, seq_cst) - TP_INACTIVE_ONE;
}
/* Round 32: make JEC even; returns it, in place (the upper half). The fence before round 33 is in it. */
uint64_t tp_sleep_announce(tp_sleep *s);
/* Step 5: sleeping += 1 if JEC is still `jec`. */
bool tp_sleep_commit(tp_sleep *s, uint64_t jec);
static inline void tp_sleep_uncommit(tp_sleep *s) {
  uint64_t before = tp_sub(&s->counters, TP_SLEEPING_ONE, seq_cst);
  TP_ASSERT(tp_sleeping_of(before) > 0, "S6");
  (void)before;
}
/* Poster: make JEC odd; returns the counters, of which sleeping and idle are to be read. A plain load
 * if it is odd already, so posting to a busy pool writes nothing shared. Comes after a full barrier. */
uint64_t tp_sleep_posted(tp_sleep *s);

#endif
