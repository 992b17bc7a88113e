/* threads.h - the threads of a pool: made when needed up to a limit, kept for a while, joined at the end.
 *
 * What a thread does is a tp_work, run with worker NULL: the loop of a seat, or something that blocks. So
 * a thread that has left its seat and one that has finished a blocking call are the same thing, and the
 * next substitute or blocking call uses it. Depends on: sched/work.h, sync/, base/thread.h.
 *
 * T1  One lock guards everything here; it is never held while work runs or a thread is started.
 * T2  count <= limit. Work waits in the queue only while count == limit or the system gives no thread, and
 *     some thread is going to finish and take it.
 * T3  An idle thread is in the idle list; whoever takes it out gives it work, or the order to end.
 * T4  Every thread that was started is joined: one that has ended by itself when the next one is started, or
 *     by tp_threads_stop.
 */
#ifndef TP_SCHED_THREADS_H
#define TP_SCHED_THREADS_H

#include "sched/work.h"
#include "sync/latch.h"
#include "sync/lock.h"

typedef struct tp_thread tp_thread;

typedef struct tp_threads {
  tp_lock lock;
  unsigned limit;   /* constant */
  unsigned count;   /* running or idle */
  unsigned seated;  /* of them in the loop of a seat: they do not come back for the queue */
  tp_chain queue;   /* T2 */
  tp_thread *idle;  /* T3; newest first */
  tp_thread *ended; /* T4 */
  bool stopping;
  _Atomic uint32_t gone; /* bumped when a thread ends; tp_threads_stop waits on it */
} tp_threads;

/* The set this thread belongs to, or NULL: also of one that has left its seat, or blocks. */
extern _Thread_local tp_threads *tp_my_threads __attribute__((tls_model("initial-exec")));

void tp_threads_init(tp_threads *t, unsigned limit);

typedef enum { TP_THREAD_NOW, TP_THREAD_SEAT, TP_THREAD_QUEUE } tp_thread_use;

/* [any] Run `work` on a thread of its own. NOW and SEAT: at once, or ERR_QUEUE_FULL (limit) or
 * ERR_MALLOC_FAILED (the system refuses); SEAT is the loop of a seat. QUEUE: at once if possible, else in
 * its turn; ERR_MALLOC_FAILED only if no thread exists that could ever take it. */
int tp_threads_run(tp_threads *t, tp_work *work, tp_thread_use use);

/* [W] The thread in a seat leaves it, to another or for good: it counts as one that will come back. */
void tp_threads_unseat(tp_threads *t);

/* [any but its threads] Wait until all work is done and all threads have ended. */
void tp_threads_stop(tp_threads *t);

#endif
