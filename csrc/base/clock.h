/* clock.h - the monotonic clock, cheap ticks, and the processor's pause. */
#ifndef TP_BASE_CLOCK_H
#define TP_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define TP_NS_PER_S  1000000000ull
#define TP_NS_PER_MS 1000000ull
#define TP_NS_PER_US 1000ull

/* [any] Nanoseconds of CLOCK_MONOTONIC; some 25 ns by the vDSO. */
static inline uint64_t tp_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * TP_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* [any] Tell the core that this is a spin loop; it never enters the kernel. */
static inline void tp_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#else
  __asm__ volatile("" ::: "memory");
#endif
}

#endif
