#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"

/* Countdown to the last injected failure, 0 = off, and how many fail in a row. The one mutable state of this layer: a
 * test hook. All relaxed: nothing else is ordered by it. */
static _Atomic long fail_countdown, fail_count;

bool tp_fail_now(void) {
  long left = tp_load(&fail_countdown, relaxed);
  while (tp_unlikely(left > 0)) {
    if (tp_cas_weak(&fail_countdown, &left, left - 1, relaxed))
      return left <= tp_load(&fail_count, relaxed);
  }
  return false;
}

void tp_fail_run(long nth, long count) {
  tp_store(&fail_countdown, 0, relaxed);
  tp_store(&fail_count, count, relaxed);
  tp_store(&fail_countdown, nth > 0 ? nth + count - 1 : 0, relaxed);
}

void tp_fail_at(long nth) {
  tp_fail_run(nth, 1);
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

/* 50 us, 200 us, 0.8 ms, 3.2 ms: somebody else may free memory meanwhile. A worker is not held for longer. */
bool tp_try_again(int *failed) {
  if (++*failed >= TP_GET_TRIES) return false;
  nanosleep(&(struct timespec){.tv_nsec = 50000l << (2 * (*failed - 1))}, NULL);
  return true;
}

void *tp_get(size_t size) {
  int failed = 0;
  void *p;
  do p = tp_fail_now() ? NULL : malloc(size ? size : 1);
  while (tp_unlikely(!p) && tp_try_again(&failed));
  return p;
}

void *tp_resize(void *old, size_t size) {
  int failed = 0;
  void *p;
  do p = tp_fail_now() ? NULL : realloc(old, size ? size : 1);
  while (tp_unlikely(!p) && tp_try_again(&failed));
  return p;
}

void tp_put(void *p) {
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
