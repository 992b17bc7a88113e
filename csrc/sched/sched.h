/* sched.h - the scheduler's own structures: the seats of the workers and what they share.
 *
 * A seat (tp_worker) is everything a worker has: deque, LIFO slot, ring, latches, counters. A thread sits
 * in it and may leave it to another thread (sched/threads.h). Seat number `workers` is the main seat, for
 * calls from outside: it runs jobs only. Map of the files: docs/ARCHITECTURE.md.
 *
 * Each field says who may touch it: [W] the thread in the seat, [any] any thread.
 */
#ifndef TP_SCHED_SCHED_H
#define TP_SCHED_SCHED_H

#include <sched.h>
#include <signal.h>

#include "base/rng.h"
#include "sched/alarm.h"
#include "sched/deque.h"
#include "sched/queue.h"
#include "sched/ring.h"
#include "sched/segment.h"
#include "sched/sleep.h"
#include "sched/threads.h"
#include "sync/latch.h"

enum {
  TP_BUDGET = 128,     /* polls between two looks at the clock */
  TP_LIFO_MOST = 3,    /* tasks in a row from the LIFO slot */
  TP_INTERVAL_MIN = 8, /* polls between two looks at the global queue */
  TP_INTERVAL_MAX = 255,
  TP_LOW_SHARE = 8, /* every so many fetches look at the low-priority queue first */
};

typedef struct tp_counters {
#define MEMBER(name, text) _Atomic uint64_t name;
  THREADPOOL_COUNTERS(MEMBER)
#undef MEMBER
} tp_counters;

struct tp_worker {
  threadpool_worker front; /* the deque; first, so that the public handle is the worker */

  TP_ALIGNED struct tp_sched *sched; /* constant */
  unsigned index;                    /* constant; == sched->workers: the main seat */
  bool searching;                    /* [W] counted in sched->searchers */
  bool doomed; /* [W] something crashed on this thread: it ends when it is back in its loop (X8) */
  unsigned lifo_streak;  /* [W] polls from the LIFO slot since the last from elsewhere */
  unsigned polls;        /* [W] of this budget */
  unsigned until_global; /* [W] polls until the global queue is looked at */
  unsigned interval;     /* [W] what until_global starts with */
  unsigned fetches;      /* [W] from the global queue */
  unsigned help_depth;   /* [W] jobs of others that lie on this stack */
  unsigned tied; /* [W] what lies on this stack and belongs to the seat: see tp_worker_leave */
  struct tp_worker
      *outer;          /* [W] of the main seat: the seat its thread had before, in another pool */
  uint64_t average_ns; /* [W] EWMA of a poll */
  uint64_t budget_began_ns; /* [W] when `polls` was 0 */
  const void *root;         /* [W] the function of what is running, for the alarm */
  tp_rng rng;               /* [W] */
  unsigned watched;         /* [W] the seat it looks after (tp_find_relief), */
  uint64_t watched_ns;      /* [W] since when, */
  uint64_t watched_count;   /* [W] and what that had executed then */
  tp_work sit;              /* the loop, as work for a thread */
  struct tp_spawned *spare; /* [W] records for spawns of scopes, and how many */
  unsigned spares;

  TP_ALIGNED _Atomic(tp_work *) lifo; /* [W] fills, [any] takes */
  tp_deferral deferral;               /* sched/alarm.h */
  tp_ring ring;                       /* [W] pushes and pops, thieves take half */

  tp_segments segments; /* sched/segment.h */
  stack_t signal_stack; /* [W] of the main seat: lent to its threads; no memory until needed */

  TP_ALIGNED tp_latch idle;    /* idle sleep: [W] sleeps, wakers set */
  tp_latch join;               /* join wait: [W] sleeps, completers and posters of jobs set */
  _Atomic(tp_work *) directed; /* [any] pushes, [W] takes all: work for this seat alone */

  TP_ALIGNED tp_counters count; /* [W] writes, [any] reads */
};

typedef struct tp_sched {
  unsigned workers; /* constant */
  bool idle_yield, pin;
  unsigned park_timeout_ms;
  cpu_set_t cpus;   /* of the thread that made the pool */
  tp_worker *seats; /* workers + 1 */

  tp_sleep sleep;
  tp_queue queue[TP_PRIORITIES];
  tp_inlet inlets[TP_INLETS];            /* a thread without a seat always uses the same one */
  TP_ALIGNED _Atomic unsigned searchers; /* workers that steal just now */
  unsigned searchers_most;
  TP_ALIGNED _Atomic bool main_taken; /* somebody sits in the main seat */
  _Atomic bool stop;                  /* workers leave when there is no work */
  tp_alarm alarm;
  tp_threads threads;

  TP_ALIGNED tp_counters outside; /* [any] what threads without a seat do */
} tp_sched;

typedef struct tp_sched_options {
  unsigned workers, blocking, park_timeout_ms;
  bool idle_yield, pin;
} tp_sched_options;

/* [any] Create all seats and start a thread in each. NULL: out of memory or threads. */
tp_sched *tp_sched_new(const tp_sched_options *o);

/* [any but its threads] Workers leave when they find nothing; join all threads. No new work may come. */
void tp_sched_stop(tp_sched *s);
void tp_sched_free(tp_sched *s);

/* The seat of this thread. Initial-exec: one load instead of a call, also in a library that was loaded
 * late. */
extern _Thread_local tp_worker *tp_seat __attribute__((tls_model("initial-exec")));

/* [any] The seat of this thread, or NULL. */
static inline tp_worker *tp_self(void) {
  return tp_seat;
}
/* [any] Sit down in a seat, or stand up (NULL). */
static inline void tp_set_self(tp_worker *w) {
  tp_seat = w;
}

static inline tp_worker *tp_worker_of(threadpool_worker *front) {
  return (tp_worker *)front;
}

/* [any] In a worker's own file, so that nothing here depends on tasks: the loop of a thread in a seat.
 * Returns when the pool stops or the seat was left to another. */
void tp_worker_run(tp_worker *w);

/* [W] This thread is going to wait: give the seat to a substitute. 0: the thread has no seat any more and
 * stays outside until its work is done; ERR_QUEUE_FULL: no more threads; ERR_MALLOC_FAILED: the system gives
 * none; ERR_SHUTDOWN; ERR_WRONG_THREAD: no seat, the main seat, or something that began in this seat has to
 * end in it: a job, a call, a broadcast, an open scope, a fork that is not yet joined. */
int tp_worker_leave(void);

/* [W, with nothing on its stack that belongs to the seat] The thread is to end: a fresh one takes the seat, and
 * tp_self() is NULL. If none can be had it stays. */
void tp_worker_retire(tp_worker *w);

#endif
