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
 * T5  A thread on which something crashed is retired: it takes nothing more from here and ends when its work is over.
 *     One that had a seat is replaced at once, by a fresh thread that also takes its place in the count; it is in
 *     `retiring` until it has ended. Another one counts until it ends, and if work waits then, starts a fresh thread
 *     for it.
 * T6  Every thread has a stack for signal handlers, allocated before it starts and freed after it was joined.
 */
#ifndef TP_SCHED_THREADS_H
#define TP_SCHED_THREADS_H

#include <signal.h>

#include "sched/work.h"
#include "sync/latch.h"
#include "sync/lock.h"

typedef struct tp_thread tp_thread;

typedef struct tp_threads {
  tp_lock lock;
  unsigned limit;    /* constant */
  unsigned count;    /* running or idle */
  unsigned retiring; /* T5: beside count */
  unsigned seated;   /* of them in the loop of a seat: they do not come back for the queue */
  tp_chain queue;    /* T2 */
  tp_thread *idle;   /* T3; newest first */
  tp_thread *ended;  /* T4 */
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

/* [a thread of a pool] T5: it is to end. */
void tp_threads_retire(void);

/* [W, a thread of the set] T5: the same, and a fresh one, never an idle one, takes its seat. ERR_MALLOC_FAILED: there
 * is none, and nothing has changed; ERR_SHUTDOWN. */
int tp_threads_replace(tp_threads *t, tp_work *seat);

/* [the thread of a child] It is nobody's thread any more. */
void tp_threads_fork_child(void);
/* [a thread of a pool, which has forked] Back from the program's code, in a child that should not have come back: the
 * parent's pool is not here. Says so, and ends the child. */
_Noreturn void tp_threads_came_back(void);

/* [any but its threads] Wait until all work is done and all threads have ended. */
void tp_threads_stop(tp_threads *t);

/* --- stacks for signal handlers (T6): large enough to run what is directed to a seat (sched/guard.c). */
/* [any] False: out of memory. The zero value is none. */
bool tp_signal_stack_new(stack_t *s);
void tp_signal_stack_free(stack_t *s);
/* [any] Let this thread, which is not ours, use *s (made if need be) unless it has one as large: then, or without
 * memory, false. Else afterwards tp_signal_stack_return. */
bool tp_signal_stack_lend(stack_t *s, stack_t *before);
void tp_signal_stack_return(const stack_t *before);

#endif
