/* futex.h - the kernel's wait and wake on a 32-bit word, and nothing else.
 *
 * Private to the process. Depends on: base/clock.h.
 */
#ifndef TP_SYNC_FUTEX_H
#define TP_SYNC_FUTEX_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

/* [any] Block while *word == expected. May return at any time: the caller looks again. */
static inline void tp_futex_wait(_Atomic uint32_t *word, uint32_t expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

/* [any] The same, until the monotonic clock shows deadline_ns. */
static inline void tp_futex_wait_until(_Atomic uint32_t *word, uint32_t expected,
                                       uint64_t deadline_ns) {
  struct timespec t = {(time_t)(deadline_ns / TP_NS_PER_S), (long)(deadline_ns % TP_NS_PER_S)};
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected, &t, NULL, FUTEX_BITSET_MATCH_ANY);
}

/* [any] The same. True: a signal handler ran. UINT64_MAX is 584 years: a wait without any deadline would be restarted
 * after a handler with SA_RESTART, which is what signal() makes of each; one that has a deadline is not. */
static inline bool tp_futex_interrupted(_Atomic uint32_t *word, uint32_t expected,
                                        uint64_t deadline_ns) {
  struct timespec t = {(time_t)(deadline_ns / TP_NS_PER_S), (long)(deadline_ns % TP_NS_PER_S)};
  long failed = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected, &t, NULL,
                        FUTEX_BITSET_MATCH_ANY);
  return failed != 0 && errno == EINTR;
}

/* [any] Wake up to n threads that wait on word. The word itself need not exist any more: the kernel
 * uses it as a name only. Costs the caller microseconds when it really wakes somebody. */
static inline void tp_futex_wake(_Atomic uint32_t *word, int n) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

#endif
