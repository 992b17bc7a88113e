/* stop.h - one signal with which one thread of ours is stopped: for a hook of that thread, and for good when the
 * process exits.
 *
 * Rules P6 to P9: docs/PROCESS.md. Depends on: base/thread.h, base/process.h, sync/lock.h. Used by: sched/threads.c,
 * sched/alarm.c, io/reactor.c (whose threads these are), api/.
 *
 * Stopping code that does not end by itself: the thread that runs it sets its tp_stop_hook; another thread calls
 * tp_stop_thread; the hook is called on the first one, wherever it just was.
 */
#ifndef TP_SCHED_STOP_H
#define TP_SCHED_STOP_H

#include <pthread.h>
#include <signal.h>

#include "base/thread.h"

/* Called in the signal handler, on the thread's stack for signals; never again while it runs. It may leave by
 * siglongjmp, to a sigsetjmp(env, 0), after tp_stop_unblock. */
typedef void (*tp_stop_fn)(siginfo_t *info, void *ucontext);

/* [the thread itself] NULL: a signal does nothing. It is called whenever the signal comes, also late: tell by what the
 * hook itself can see whether it is still meant. */
extern _Thread_local tp_stop_fn tp_stop_hook __attribute__((tls_model("initial-exec")));

/* [a hook, before it leaves by siglongjmp] The signal may come again. */
void tp_stop_unblock(void *ucontext);

/* [any] Send the signal to a thread of ours, which must not have ended. 0; ERR_INVALID_ARGUMENT: there is no such thread,
 * or no signal to be had (every one is in use by the host). */
int tp_stop_thread(pthread_t thread);

/* [any] Take a signal and install its handler with the first pool; give it back with the last. */
void tp_stop_install(void);
void tp_stop_uninstall(void);

/* --- the threads ------------------------------------------------------------------------------- */

/* On the stack of each thread of ours. */
typedef struct tp_stoppable {
  struct tp_stoppable *next, *before; /* in the list of all */
  pthread_t id;
  _Atomic bool sent; /* it is on its way, from tp_stop_all */
  _Atomic bool parked;
} tp_stoppable;

/* [a thread of ours] Its first and its last act but for its end. */
void tp_stop_enter(tp_stoppable *me);
void tp_stop_leave(tp_stoppable *me);

/* [any] Whether this thread is one of them. */
bool tp_stop_is_ours(void);

/* [whoever exits, tp_exiting is set] Park all of them for ever, but the caller. Bounded: who cannot be parked is left. */
void tp_stop_all(void);

/* Around a fork; the last one in the child instead of tp_stop_fork_after. */
void tp_stop_fork_before(void);
void tp_stop_fork_after(void);
void tp_stop_fork_child(void);

#endif
