/* thread.h - starts threads the way a library must: with the host's signals kept away from them. */
#ifndef TP_BASE_THREAD_H
#define TP_BASE_THREAD_H

#include <pthread.h>

/* [any] Start fn(arg) in a thread named `name` (at most 15 characters). Every signal is blocked in it but
 * the four synchronous ones (SEGV, BUS, FPE, ILL). cpu >= 0 pins the thread.
 * 0, or ERR_MALLOC_FAILED when the system gives no thread. */
int tp_thread_start(pthread_t *thread, const char *name, int cpu, void *(*fn)(void *), void *arg);

#endif
