/* task.h - async tasks: spawn, wake, await, yield, cancel, shield, wait.
 *
 * States, rules and proofs: docs/TASKS.md. Depends on: sched/, task/state.h, task/slab.h. Used by: io/, api/.
 *
 * A task is a poll function: called by one worker at a time until it returns TP_READY. When it has to wait
 * it keeps a waker, or has something keep one, and returns TP_PENDING; a wake lets it be polled again. A
 * plain function is a poll function that is ready at once.
 *
 * K1  SCHEDULED means: in exactly one queue, or with whoever is about to put it there. Whoever takes it out makes it
 *     RUNNING and is its only runner.
 * K2  Only the runner leaves RUNNING. A task that yields stays RUNNING in the queue: its runner is then
 *     whoever takes it out, and a wake meanwhile sets `notified`.
 * K3  IDLE -> SCHEDULED is one CAS of one waker or canceller, who queues it. A wake is never lost: while
 *     RUNNING it sets `notified`, which the pause sees in the same CAS that makes it IDLE.
 * K4  Every task reaches COMPLETE exactly once, with one code, after `end` was called exactly once.
 * K5  Cancellation takes effect while the shield is 0: a queued task is not polled, a waiting one is
 *     ended, a running one sees tp_task_cancelled and is ended when it returns pending.
 * K6  `done` is read by the one who made the task COMPLETE, if join interest was set in that CAS's word.
 * K7  A record is alive while its references are > 0. The task itself holds one until it is COMPLETE and
 *     its joiner was told; each handle and each waker holds one.
 * K8  A task that ended counts as completed after everything above: drained means nothing of it is left.
 */
#ifndef TP_TASK_TASK_H
#define TP_TASK_TASK_H

#include "sched/sched.h"
#include "task/slab.h"
#include "task/state.h"

typedef struct tp_task tp_task;
typedef struct tp_tasks tp_tasks;

typedef enum { TP_PENDING, TP_READY, TP_YIELD } tp_poll;
typedef tp_poll (*tp_poll_fn)(tp_task *t, void *arg);

/* Told once of a task's end, on the thread that ended it. */
typedef struct tp_done {
  void (*fn)(void *arg);
  void *arg;
} tp_done;

/* One cache line is all that a task needs which has no `end` and nobody waits for: it is what travels from the
 * core that spawns to the one that runs, and back with the record. The rest is in its cold part. */
struct tp_task {
  TP_ALIGNED tp_record record; /* its id */
  tp_work work;                /* in the queue it is SCHEDULED in */
  tp_state state;  /* with what is constant: priority, blocking; and the code of the end */
  tp_tasks *tasks; /* constant while it lives, as are poll and arg */
  tp_poll_fn poll;
  void *arg;
};
_Static_assert(sizeof(tp_task) == TP_CACHE_LINE, "one cache line");

typedef struct tp_spawn_spec {
  tp_poll_fn poll;
  void *arg;
  void (*end)(tp_task *t); /* may be NULL */
  tp_priority priority;    /* TP_NORMAL is not 0: say it */
  bool blocking;           /* may block: runs on a thread of its own, not on a worker */
} tp_spawn_spec;

/* [any] The tasks of a scheduler. NULL: out of memory. */
tp_tasks *tp_tasks_new(tp_sched *s);

/* [any] */
tp_sched *tp_tasks_sched(const tp_tasks *ts);

/* [any but its threads] Refuse new tasks from outside, wait until all have ended, but only until deadline_ns
 * of the monotonic clock, or until the process exits; then cancel what is left, and wait for that. */
void tp_tasks_drain(tp_tasks *ts, uint64_t deadline_ns);

/* [any] While the process exits: refuse all new tasks and cancel what is there, without waiting for anything. Returns
 * how many have not ended yet; called again and again, as one may just have been spawning another. */
uint64_t tp_tasks_cancel(tp_tasks *ts);

/* [any] Whether they are those of a parent of this process. */
bool tp_tasks_forked(const tp_tasks *ts);

/* [any] Whether a drain has got to that: what waits for another task may not count on it any more. */
bool tp_tasks_cancelling(const tp_tasks *ts);

/* [any, after the scheduler has stopped] */
void tp_tasks_free(tp_tasks *ts);

/* [any] Start a task. *handle (may be NULL: nobody will ask) gets a reference. 0, ERR_INVALID_ARGUMENT,
 * ERR_MALLOC_FAILED, ERR_SHUTDOWN. Inside the pool it is next in turn on this worker; from outside it costs the
 * lock of an inlet (two uncontended atomic operations), rarely a CAS. Safe beside a drain that has begun; as
 * with all functions here, the pool must not be freed before it returns. */
int tp_spawn(tp_tasks *ts, const tp_spawn_spec *spec, tp_task **handle);

/* [any] A task that is in no queue yet: SCHEDULED, and the caller's until tp_task_post, so that it can be made known
 * before it may end. NULL: *error as of tp_spawn, after some 4 ms if memory is out. */
tp_task *tp_task_new(tp_tasks *ts, const tp_spawn_spec *spec, int *error);
/* [who made it, once] Queue it. There is no reference for the caller: it may be gone afterwards. When it is
 * a blocking one that gets no thread, a worker ends it with ERR_MALLOC_FAILED. */
void tp_task_post(tp_task *t);

/* [any, holding a reference] Let it be polled (again). */
void tp_task_wake(tp_task *t);

/* [any, holding a reference] Ask for its end. True: it was not yet over. */
bool tp_task_cancel(tp_task *t);

/* [any, before the first task that it is meant for] Have told(arg) called whenever a task is cancelled that is queued or
 * runs; by who cancels. */
void tp_tasks_on_told(tp_tasks *ts, void (*told)(void *arg), void *arg);

/* [any, holding a reference] One more reference (a waker, a handle), one less. */
tp_task *tp_task_ref(tp_task *t);
void tp_task_unref(tp_task *t);

/* [any] By its id, with a reference; NULL: no such task any more. */
tp_task *tp_task_find(tp_tasks *ts, uint64_t id);

static inline uint64_t tp_task_id(tp_task *t) {
  return tp_load(&t->record.id, relaxed); /* constant while referenced */
}
static inline bool tp_task_over(tp_task *t) {
  return tp_lifecycle(tp_load(&t->state, acquire)) ==
         TP_COMPLETE; /* its code, and what it did, are seen then */
}
/* [any, after its end; in `end` and after] 0, or why it failed. */
static inline int tp_task_code(tp_task *t) {
  return tp_code(tp_load(&t->state, relaxed));
}

/* --- inside the poll function [runner] --- */

/* A poll function that returns TP_YIELD gives way to others: it is polled again after what is queued now. */

/* What it failed with, before it returns TP_READY; `end` may still change it. -127..0. */
static inline void tp_task_fail(tp_task *t, int code) {
  tp_state_set_code(&t->state, code);
}

/* TP_READY: the child is over, its code may be read and its handle given back. TP_PENDING: return
 * it; the task is polled again when the child is over. One awaiter a child. */
tp_poll tp_task_await(tp_task *t, tp_task *child);

/* Whether it is to end (K5). */
static inline bool tp_task_cancelled(tp_task *t) {
  return tp_is_cancelled(tp_load(&t->state, relaxed));
}
/* Hold cancellation off, and let it through again. They nest, up to 255 deep. False: they are, or no shield was
 * raised; nothing has changed. */
static inline bool tp_task_shield(tp_task *t) {
  return tp_state_shield(&t->state);
}
static inline bool tp_task_unshield(tp_task *t) {
  return tp_state_unshield(&t->state);
}

/* --- outside of it --- */

/* [any thread, holding a reference] Wait for its end; deadline_ns 0: without limit. A worker, of whichever pool,
 * gives its seat to a substitute first. 0; ERR_TIMEOUT; ERR_BUSY: somebody else waits for it or awaits it;
 * and the errors of tp_worker_leave, such as ERR_WRONG_THREAD inside a job. */
int tp_task_wait(tp_task *t, uint64_t deadline_ns);

#endif
