/* find.h - where a worker looks for work, in the order of docs/ARCHITECTURE.md.
 *
 * Depends on: sched/sched.h. Used by: sched/worker.c, sched/fork.c.
 */
#ifndef TP_SCHED_FIND_H
#define TP_SCHED_FIND_H

#include "sched/sched.h"

/* One of them, or neither. */
typedef struct tp_found {
  threadpool_job *job;
  tp_segment *segment; /* of a stolen job: where it is counted (X5); NULL: nowhere */
  tp_work *work;
} tp_found;

/* [W] The next thing of an active worker: its own, and the global queues. */
bool tp_find_next(tp_worker *w, tp_found *f);

/* [W] From the global queues. */
bool tp_find_global(tp_worker *w, tp_found *f);

/* [W] From the other seats, beginning at a random one. */
bool tp_find_steal(tp_worker *w, tp_found *f);

/* [W] Once in a while: if the seat it looks after has finished nothing for a while, take over half of its ring
 * and its LIFO slot. So what waits behind something long is reached even if nobody ever is idle. */
void tp_find_relief(tp_worker *w, uint64_t now);

/* [W] A job of another seat, for those who may run nothing else. */
bool tp_find_job(tp_worker *w, tp_found *f);

/* [W] What was posted to this seat alone, oldest first; NULL: nothing. */
tp_work *tp_take_directed(tp_worker *w);

/* [any] Whether jobs, tasks could be seen anywhere. After a barrier: nothing that was posted before it and
 * is not yet taken is missed, but what somebody is just moving. */
bool tp_visible_jobs(tp_sched *s);
size_t tp_visible_tasks(tp_sched *s); /* about how many; 0 only if none */

#endif
