/* crash.h - handlers that crash do not kill the process.
 *
 * What is recovered and what is not, rules X1..X9: docs/CRASHES.md. Depends on: sched/guard.h, sync/lock.h. Used by:
 * api/, and whoever runs code that is not the library's.
 */
#ifndef TP_POOL_CRASH_H
#define TP_POOL_CRASH_H

#include <stdbool.h>

#include "sched/guard.h"

/* tp_crash and tp_guard_run: sched/guard.h. */

/* [any] Install the process's signal handlers with the first pool, take them away with the last (X9). 0. */
int tp_crash_install(void);
void tp_crash_uninstall(void);

/* Around a fork, in the parent and in the child; there is no pool in the child. */
void tp_crash_fork_before(void);
void tp_crash_fork_after(void);
void tp_crash_fork_child(void);

/* [any] "SIGSEGV". */
const char *tp_crash_name(int signal);

#endif
