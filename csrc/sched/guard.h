/* guard.h - functions that may crash: what has to be put in order before the stack is left, and the thread's end.
 *
 * Rules X1..X9: docs/CRASHES.md. Depends on: sched/sched.h. Used by: sched/, pool/crash.c (which has the signals).
 *
 * A *frame* is on the stack of whoever runs a guarded function, or a job of one; it knows where to go on after a
 * crash, and what the seat looked like. Only the innermost one counts. While code runs that is not guarded (a job of
 * a call from outside, a broadcast) there is none, whatever lies below.
 */
#ifndef TP_SCHED_GUARD_H
#define TP_SCHED_GUARD_H

#include <setjmp.h>

#include "base/critical.h"
#include "sched/sched.h"

/* A spawn that runs directly in a frame: if that crashes, its scope has to be told (X7). */
typedef struct tp_running {
  struct tp_running *next;
  threadpool_scope *scope;
} tp_running;

typedef struct tp_frame {
  struct tp_frame *outer; /* what tp_guard was */
  tp_worker *seat;        /* at its entry; NULL: a thread without one */
  tp_segment *segment;    /* of the seat; NULL: a thread without one */
  tp_running *running;    /* innermost first */
  int64_t bottom;         /* the rest: what the seat and the thread were like at its entry */
  const void *root;
  unsigned tied, help_depth, critical;
  bool alone; /* nothing else on this stack belongs to the seat */
  tp_crash crash;
  sigjmp_buf env;
} tp_frame;

/* The innermost frame of this thread; NULL: a fault here is not recovered (X1). */
extern _Thread_local tp_frame *tp_guard __attribute__((tls_model("initial-exec")));

/* [any] X4. Not inside a section, where it would be too late. */
static inline void tp_library_probe(void) {
  if (tp_unlikely(tp_guard != NULL) && tp_critical == 0) tp_stack_probe();
}

/* [any] Around what a handler may call and must not be left in the middle (X3). The stack is touched first (X4). What
 * is not guarded pays for a load and a branch: tp_guard is the same at both ends, since frames nest. */
static inline void tp_library_begin(void) {
  if (tp_likely(!tp_guard)) return;
  tp_library_probe();
  tp_critical_begin();
}
static inline void tp_library_end(void) {
  if (tp_unlikely(tp_guard != NULL)) tp_critical_end();
}

/* --- guarded functions ------------------------------------------------------------------------- */

/* [W, or a thread of the pool without a seat] Run fn(arg). True: it returned. False: it crashed, *crash (may be NULL)
 * says how, and the thread is to be retired (X8): its seat with its queues was given to a fresh thread, tp_self() is
 * NULL, and it ends when the caller has returned to its loop; so a task that crashed ends, and does not yield. It
 * keeps the seat if something else on its stack belongs to it (a job, an open scope), until that is over, or if no
 * thread is to be had.
 *
 * On other threads, and in the main seat, fn is run without a guard.
 *
 * Cost of a call that does not crash: 9 ns more than a plain one (gcc 12, the 2-core machine of bench/README.md), of
 * which sigsetjmp without the signal mask is 4.5; __builtin_setjmp would be 1.7, but is the compiler's own business
 * (no shadow stacks, no sanitizer knows it). */
bool tp_guard_run(void (*fn)(void *arg), void *arg, tp_crash *crash);

/* --- segments ---------------------------------------------------------------------------------- */

tp_segment *tp_segment_find(tp_worker *w, uint32_t depth, int64_t at);
tp_segment *tp_segment_at(tp_worker *w, uint32_t i);

/* [W, or a thief after tp_deque_look] The guarded segment that job `at` of this seat belongs to; NULL: none.
 * Acquire: what `from` of the segments below `depth` was when they were made (X2). */
static inline tp_segment *tp_segment_of(tp_worker *w, int64_t at) {
  uint32_t depth = tp_load(&w->segments.depth, acquire);
  return tp_likely(!depth) ? NULL : tp_segment_find(w, depth, at);
}

/* [any] X5: one more of its jobs is with somebody else; one less. */
void tp_segment_more(tp_segment *s);
void tp_segment_less(tp_segment *s);

/* [any, being counted in it] One of its jobs crashed (X6). */
void tp_segment_crash(tp_segment *s, const tp_crash *crash);
static inline bool tp_segment_crashed(const tp_segment *s) {
  return tp_load(&s->crashed,
                 acquire); /* relaxed would do: the crash itself is read after the wait */
}

/* --- for the signal handlers ------------------------------------------------------------------- */

/* [any, in a signal handler] X1. */
bool tp_guard_may_unwind(void);
/* [the same] Put the seat in order, wait for what still uses this stack, and go on at the frame's sigsetjmp, with
 * f->crash written and the frame left. Allocates nothing. Does not return, but must not be declared so: before such a
 * call AddressSanitizer marks its fake stack for collection, and on a signal stack then collects frames that are in
 * use. siglongjmp tells it in time. */
void tp_guard_unwind(const tp_crash *crash);

/* --- in the scheduler -------------------------------------------------------------------------- */

/* [W] Run a job while something is guarded: it is one of `s` (NULL: not guarded), or what lies below on this stack
 * is. `counted`: it was stolen, and is counted in s. */
void tp_guard_job(tp_worker *w, threadpool_job *job, tp_segment *s, bool counted);

/* [W] After waiting for jobs: leave if one of them crashed. */
void tp_guard_check_slow(tp_worker *w);
static inline void tp_guard_check(tp_worker *w) {
  if (tp_unlikely(tp_load(&w->segments.depth, relaxed))) tp_guard_check_slow(w); /* our own */
}

/* [W] Around what is not guarded while something below may be. */
typedef struct tp_barrier {
  tp_frame *guard;
  bool pushed;
} tp_barrier;
tp_barrier tp_barrier_begin(tp_worker *w);
void tp_barrier_end(tp_worker *w, tp_barrier b);

/* [any, once nobody sits in it] */
void tp_segments_init(tp_worker *w);
void tp_segments_free(tp_worker *w);

#endif
