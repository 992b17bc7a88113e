/* fork.h - running jobs and waiting for them. The waiting is docs/SLEEP.md 4.2.
 *
 * Depends on: sched/sched.h. Used by: sched/.
 */
#ifndef TP_SCHED_FORK_H
#define TP_SCHED_FORK_H

#include "sched/sched.h"

/* [W] Run a job that was taken from a deque, and tell its owner. `s`: of a guarded fork its segment, where it is
 * counted if it was stolen (X5). */
void tp_run_job(tp_worker *w, threadpool_job *job, tp_segment *s, bool stolen);

/* [W] The newest job of this seat, and its segment. */
threadpool_job *tp_pop_job(tp_worker *w, tp_segment **s);

/* [any] The end of what `waiter` waits for. `done`'s memory may be gone when this returns. */
void tp_job_done(tp_worker *waiter, tp_latch *done);

/* [W] Run jobs until `done` is set; sleep when there are none. */
void tp_join_wait(tp_worker *w, tp_latch *done);

/* [W] Run what was posted to this seat alone. */
void tp_run_directed(tp_worker *w);

#endif
