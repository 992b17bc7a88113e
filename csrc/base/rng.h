/* rng.h - xorshift64*, for picking victims. One state a worker, so it needs no atomics. */
#ifndef TP_BASE_RNG_H
#define TP_BASE_RNG_H

#include <stdint.h>

typedef struct tp_rng {
  uint64_t state; /* never 0 */
} tp_rng;

static inline void tp_rng_seed(tp_rng *r, uint64_t seed) {
  /* One step of splitmix64, so that seeds 1, 2, 3 give unlike sequences. */
  uint64_t z = seed + 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  r->state = z ? z : 1;
}

static inline uint64_t tp_rng_next(tp_rng *r) {
  uint64_t x = r->state;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  r->state = x;
  return x * 0x2545f4914f6cdd1dull;
}

/* A number in [0, n), n > 0: the high half of a product, which is unbiased enough and no division. */
static inline uint32_t tp_rng_below(tp_rng *r, uint32_t n) {
  return (uint32_t)(((tp_rng_next(r) >> 32) * (uint64_t)n) >> 32);
}

#endif
