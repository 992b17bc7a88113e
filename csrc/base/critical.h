/* critical.h - whether this thread is inside the library, where a fault is not recovered.
 *
 * docs/CRASHES.md, X3. Depends on: base/atomic.h. Used by: sync/lock.h, and whatever a handler may call that changes
 * something in more than one step. [any] thread; begin and end on the same one, in pairs that nest.
 *
 * Cost: one instruction each, on the thread's own memory. The signal fences keep the compiler, and nothing else, from
 * moving the section's accesses out of it: who looks is a signal handler of the same thread.
 */
#ifndef TP_BASE_CRITICAL_H
#define TP_BASE_CRITICAL_H

#include "base/atomic.h"

/* How many sections this thread is in. */
extern _Thread_local unsigned tp_critical __attribute__((tls_model("initial-exec")));

static inline void tp_critical_begin(void) {
  tp_critical++;
  atomic_signal_fence(memory_order_seq_cst);
}
static inline void tp_critical_end(void) {
  atomic_signal_fence(memory_order_seq_cst);
  tp_critical--;
}

/* Before and after the program's own code that is called from such a section. */
static inline unsigned tp_critical_pause(void) {
  unsigned depth = tp_critical;
  atomic_signal_fence(memory_order_seq_cst);
  tp_critical = 0;
  return depth;
}
static inline void tp_critical_resume(unsigned depth) {
  tp_critical = depth;
  atomic_signal_fence(memory_order_seq_cst);
}

/* Touch as much stack as a section needs, so that a stack that is about to overflow does so here, where it is
 * recovered, and not in the section (X4). Two stores. */
void tp_stack_probe(void);

#endif
