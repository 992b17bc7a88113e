/* atomic.h - C11 atomics in the short form used throughout, and the cache-line size.
 *
 * tp_load(p, acquire) reads better in a protocol than the full spelling, and keeps the order
 * visible at every use. Depends on: nothing.
 */
#ifndef TP_BASE_ATOMIC_H
#define TP_BASE_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define tp_load(p, order)     atomic_load_explicit((p), memory_order_##order)
#define tp_store(p, v, order) atomic_store_explicit((p), (v), memory_order_##order)
#define tp_swap(p, v, order)  atomic_exchange_explicit((p), (v), memory_order_##order)
#define tp_add(p, v, order)   atomic_fetch_add_explicit((p), (v), memory_order_##order)
#define tp_sub(p, v, order)   atomic_fetch_sub_explicit((p), (v), memory_order_##order)
#define tp_or(p, v, order)    atomic_fetch_or_explicit((p), (v), memory_order_##order)
#define tp_and(p, v, order)   atomic_fetch_and_explicit((p), (v), memory_order_##order)

/* Compare and swap: on failure *expected holds what was seen (relaxed: every loop here re-checks). */
#define tp_cas(p, expected, desired, order)                                                        \
  atomic_compare_exchange_strong_explicit((p), (expected), (desired), memory_order_##order,        \
                                          memory_order_relaxed)
#define tp_cas_weak(p, expected, desired, order)                                                   \
  atomic_compare_exchange_weak_explicit((p), (expected), (desired), memory_order_##order,          \
                                        memory_order_relaxed)

/* Store-then-load order, the one thing release and acquire cannot give. */
#define tp_fence() atomic_thread_fence(memory_order_seq_cst)

/* A counter with one writer: readers see a recent value, the writer pays no locked instruction. */
#define tp_bump(p, n) tp_store((p), tp_load((p), relaxed) + (n), relaxed)

/* Have the cache line at p come to this core, to be written. A hint: p may point anywhere. */
static inline void tp_prefetch(const void *p) {
#if defined(__x86_64__) /* gcc emits it only if told of the processor; those without it ignore it */
  __asm__ volatile("prefetchw %0" ::"m"(*(const char *)p));
#else
  __builtin_prefetch(p, 1);
#endif
}

#define TP_CACHE_LINE 64
#define TP_ALIGNED    _Alignas(TP_CACHE_LINE)

#define tp_likely(x)   __builtin_expect(!!(x), 1)
#define tp_unlikely(x) __builtin_expect(!!(x), 0)
#define TP_NOINLINE    __attribute__((noinline))

#endif
