#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Huge pages begin at multiples of their size, and mmap gives any page: so map one more, and give back what
 * lies before and behind. Small tables take ordinary pages. */
enum { HUGE_PAGE = 2 << 20 };

void *tp_map(size_t size) {
  if (tp_fail_now()) return NULL;
  if (size == 0 || size > SIZE_MAX - 2 * (size_t)HUGE_PAGE) return NULL;
  size_t extra = size < HUGE_PAGE ? 0 : HUGE_PAGE;
  char *p = mmap(NULL, size + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
  if (!extra) return p;
  size_t before = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
  if (before) munmap(p, before);
  size_t page = (size_t)sysconf(_SC_PAGESIZE), end = (before + size + page - 1) / page * page;
  if (end < size + extra) munmap(p + end, size + extra - end);
  madvise(p + before, size, MADV_HUGEPAGE); /* a wish: refusing changes speed only */
  return p + before;
}

void tp_unmap(void *p, size_t size) {
  if (p) munmap(p, size);
}
