/* thread.h - starts threads the way a library must: with the host's signals kept away from them. */
#ifndef TP_BASE_THREAD_H
#define TP_BASE_THREAD_H

#include <pthread.h>
#include <sched.h>

#include "base/atomic.h"

/* The signal that stops one thread of ours (sched/stop.h, which chooses it); 0: none yet. */
extern _Atomic int tp_stop_signal;

/* [any] Start fn(arg) in a thread. Every signal is blocked in it but the four synchronous ones (SEGV, BUS, FPE, ILL)
 * and tp_stop_signal. It may run where its starter could before that was pinned.
 * 0, or ERR_MALLOC_FAILED when the system gives no thread, or the process exits. */
int tp_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/* [any] Keep this thread on one CPU, or (-1) let it run on all of `all` again. `all` lives as long as the
 * thread is pinned. A wish: failing changes speed only. */
void tp_thread_pin(int cpu, const cpu_set_t *all);

/* [the thread of a child, which was made by a thread of ours] Be an ordinary thread: no signal is blocked, and it may run
 * where it could before it was pinned. */
void tp_thread_forked(void);

#endif
