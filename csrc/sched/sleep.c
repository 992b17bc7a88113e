#include "sched/sleep.h"

#include "base/alloc.h"
#include "base/error.h"

int tp_sleep_init(tp_sleep *s, unsigned seats) {
  unsigned words = (seats + 63) / 64;
  /* One allocation: the sleepers' words, then the waiters', each from the beginning of a cache line. */
  size_t line = TP_CACHE_LINE / sizeof(uint64_t);
  size_t each = (words + line - 1) / line * line;
  _Atomic uint64_t *memory = tp_alloc(2 * each * sizeof *memory);
  if (!memory) return ERR_MALLOC_FAILED;
  s->sleepers = (tp_bitmap){words, memory};
  s->waiters = (tp_bitmap){words, memory + each};
  tp_store(&s->counters, TP_JEC_ONE, relaxed); /* before any thread starts */
  return 0;
}

void tp_sleep_free(tp_sleep *s) {
  tp_free((void *)s->sleepers.word);
  s->sleepers.word = s->waiters.word = NULL;
}

int tp_bitmap_claim(tp_bitmap *b, unsigned from) {
  for (unsigned w = from / 64; w < b->words; w++) {
    uint64_t mask = w == from / 64 ? ~0ull << from % 64 : ~0ull;
    for (;;) {
      uint64_t bits = tp_load(&b->word[w], seq_cst) & mask; /* after the poster's barrier (S3) */
      if (!bits) break;
      unsigned i = w * 64 + (unsigned)__builtin_ctzll(bits);
      if (tp_bitmap_clear(b, i)) return (int)i;
    }
  }
  return -1;
}

bool tp_bitmap_any(const tp_bitmap *b) {
  for (unsigned w = 0; w < b->words; w++)
    if (tp_load(&b->word[w], seq_cst)) return true;
  return false;
}

uint64_t tp_sleep_announce(tp_sleep *s) {
  uint64_t c = tp_load(&s->counters, seq_cst);
  uint64_t even;
  do even = c & TP_JEC_ONE ? c + TP_JEC_ONE : c;
  while (!tp_cas_weak(&s->counters, &c, even, seq_cst));
  tp_fence(); /* S2: announced before the last search; pairs with the poster's barrier (S3) */
  return even >> 32 << 32;
}

bool tp_sleep_commit(tp_sleep *s, uint64_t jec) {
  uint64_t c = tp_load(&s->counters, seq_cst);
  while (c >> 32 << 32 == jec)
    if (tp_cas_weak(&s->counters, &c, c + TP_SLEEPING_ONE, seq_cst)) return true;
  return false;
}

uint64_t tp_sleep_posted(tp_sleep *s) {
  uint64_t c = tp_load(&s->counters, seq_cst);
  while (!(c & TP_JEC_ONE))
    if (tp_cas_weak(&s->counters, &c, c + TP_JEC_ONE, seq_cst)) return c + TP_JEC_ONE;
  return c;
}
