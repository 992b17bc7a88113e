/* process.h - what a pool means to the process: fork, and exit with pools that are open.
 *
 * Rules P1 to P9: docs/PROCESS.md. Depends on: api/pool.h, sched/stop.h, pool/crash.h. Used by: api/threadpool.c,
 * api/requests.c.
 */
#ifndef TP_API_PROCESS_H
#define TP_API_PROCESS_H

#include "api/pool.h"

/* [any] Before a pool is made: its signals, and with the first one of the process what is done at exit. 0; or a code
 * after tp_say. Undone by tp_process_left when the pool is gone, or could not be made. */
int tp_process_enter(void);
void tp_process_left(void);

/* [any] A handle is never freed, only what it stands for: so a late call, or a second shutdown, is told that the pool
 * is closed. It costs a cache line for each pool there ever was; the list keeps them reachable. */
void tp_process_add(threadpool_t *pool);

/* [any] Around the end of a pool by this thread. */
void tp_process_closing(threadpool_t *pool);
void tp_process_closed(void);

/* [any] P5: if a thread of ours has called exit, a thread of the host that was waiting for the pool stays here: it would
 * go on with results that were cancelled, and perhaps exit itself with another status. */
void tp_process_hold(void);

#endif
