/* crash.h - handlers that crash do not kill the process.
 *
 * What is recovered and what is not, rules X1..X9: docs/CRASHES.md. Depends on: sched/guard.h, sync/lock.h. Used by:
 * api/, and whoever runs code that is not the library's.
 */
#ifndef TP_POOL_CRASH_H
#define TP_POOL_CRASH_H

#include <stdbool.h>

#include "sched/segment.h"

/* [W, or a thread of the pool without a seat] Run fn(arg). True: it returned. False: it crashed, *crash (may be NULL)
 * says how, and the thread is to be retired (X8): its seat with its queues was given to a fresh thread, tp_self() is
 * NULL, and it ends when the caller has returned to its loop; so a task that crashed ends, and does not yield. It
 * keeps the seat if something else on its stack belongs to it (a job, an open scope), until that is over, or if no
 * thread is to be had.
 *
 * On other threads, and in the main seat, fn is run without a guard.
 *
 * Cost of a call that does not crash: 8 ns (measured with gcc 12 on the 2-core machine of bench/README.md, 2 ns of it
 * the indirect call), of which sigsetjmp without the signal mask is 4.5. */
bool tp_guard_run(void (*fn)(void *arg), void *arg, tp_crash *crash);

/* [any] Install the process's signal handlers with the first pool, take them away with the last (X9). 0. */
int tp_crash_install(void);
void tp_crash_uninstall(void);

/* [any] "SIGSEGV". */
const char *tp_crash_name(int signal);

#endif
