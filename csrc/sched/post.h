/* post.h - puts work where others find it, and wakes somebody if nobody is looking.
 *
 * Rules: docs/SLEEP.md. Depends on: sched/sched.h. Used by: sched/, task/, io/.
 *
 * Cost of a post to a pool that is busy: the publication (one CAS, exchange or fence) and one load of the
 * counters, a line that changes only when workers go idle.
 */
#ifndef TP_SCHED_POST_H
#define TP_SCHED_POST_H

#include "sched/sched.h"

/* [any] Into the global queue of that priority. Two uncontended atomic operations, and a CAS if it is the
 * first since a worker emptied the inlet. */
void tp_post(tp_sched *s, tp_priority p, tp_work *work);

/* [any] The same in two steps, for who needs the inlet's lock for something else as well: lock the inlet of
 * this thread; post and unlock it. */
tp_inlet *tp_inlet_enter(tp_sched *s);
void tp_inlet_post(tp_sched *s, tp_inlet *in, tp_priority p, tp_work *work);

/* [any] Return when every post that was begun before is over: whoever enters an inlet later sees what the
 * caller did before. */
void tp_inlets_quiesce(tp_sched *s);

/* [W] Next in turn for this worker: into its LIFO slot, what was there goes to the ring. One exchange. */
void tp_post_next(tp_worker *w, tp_work *work);

/* [W] Last in turn: into the ring. One fence. */
void tp_post_last(tp_worker *w, tp_work *work);

/* [any] To be run by the thread in that seat and nobody else, also while it waits for a job. */
void tp_post_to(tp_worker *target, tp_work *work);

/* [any] After a publication and a full barrier: n pieces of work are there. `by`: the poster's seat, or
 * NULL. */
void tp_posted(tp_sched *s, tp_worker *by, size_t n);

/* [W] The same for exposed jobs, which join waiters can run too. `defer`: the alarm may do it later. */
void tp_posted_jobs(tp_worker *by, size_t n, bool defer);

/* [alarm] Work was left beside sleepers long enough: jobs, which join waiters can run too, and so many tasks.
 * True: somebody was woken. */
bool tp_posted_by_alarm(tp_sched *s, bool jobs, size_t tasks);

/* [W] The worker stops being idle because it found work: look whether there is more, and wake. */
void tp_post_found(tp_worker *w);

/* [W] A claimed join waiter leaves without having looked: somebody else has to. */
void tp_post_pass_on(tp_worker *w);

/* [any] Wake the thread in this seat if it sleeps there (idle). */
void tp_wake_seat(tp_worker *w);

/* [any] Set a worker's join latch and wake it if it was asleep. False: it did not wait. */
bool tp_wake_join(tp_worker *w);

#endif
