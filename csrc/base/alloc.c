#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"

/* Countdown to the injected failure; 0 = off. The one mutable global of this layer: a test hook. */
static _Atomic long fail_countdown;

bool tp_fail_now(void) {
  long left = tp_load(&fail_countdown, relaxed);
  while (tp_unlikely(left > 0)) {
    if (tp_cas_weak(&fail_countdown, &left, left - 1, relaxed)) return left == 1;
  }
  return false;
}

void tp_fail_at(long nth) {
  tp_store(&fail_countdown, nth, relaxed);
}

long tp_fail_left(void) {
  return tp_load(&fail_countdown, relaxed);
}

void *tp_alloc(size_t size) {
  if (tp_fail_now()) return NULL;
  if (size == 0 || size > SIZE_MAX - TP_CACHE_LINE) return NULL;
  size = (size + TP_CACHE_LINE - 1) & ~(size_t)(TP_CACHE_LINE - 1);
  void *p = aligned_alloc(TP_CACHE_LINE, size);
  if (p) memset(p, 0, size);
  return p;
}

void tp_free(void *p) {
  free(p);
}
