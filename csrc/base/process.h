/* process.h - which process this is, and whether it is about to end.
 *
 * docs/PROCESS.md, P2 and P5. Written by api/process.c only. Depends on: base/atomic.h. [any] thread.
 */
#ifndef TP_BASE_PROCESS_H
#define TP_BASE_PROCESS_H

#include "base/atomic.h"

/* Grows in the child of each fork. Whatever a child must not touch remembers what it was when that was made. */
extern _Atomic unsigned tp_generation;

/* exit() has begun with pools that are open: no new threads, no new work, and who drains cancels at once. */
extern _Atomic bool tp_exiting;

/* Whether it belongs to a parent of this process. Relaxed: written before the child has a second thread. */
static inline bool tp_forked(unsigned made_in) {
  return tp_load(&tp_generation, relaxed) != made_in;
}

/* tp_say of that: what to do. Returns ERR_FORKED. */
int tp_say_forked(void);

#endif
