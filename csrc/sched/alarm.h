/* alarm.h - wakes that come later, or not at all if the work was over by then.
 *
 * A futex wake costs the waker some 6 us, and who is woken arrives some 50 us later; a tree of 2,047 forks
 * takes 1.4. So a fork by a *root* (the function of a call, a task, a stolen job) whose runs are usually over
 * sooner than a wake would help does not wake: it notes the time, and arms a timer if none is armed. Later
 * forks of the same root wake after all when the time is up; and if it never forks again, the timer's
 * thread does it. Tasks are treated the same way: while they are short and somebody runs, a wake for a few
 * of them is left to the alarm.
 *
 * A1  While something is deferred `armed` is set, or the thread is about to look: the deferral is stored
 *     before `armed` is read, and the thread clears `armed` before its last look (both seq-cst). The timer
 *     ticks while `armed` is set: it is stopped before that is cleared.
 * A2  A root's usual time is an average in which the last run counts half, and no run more than
 *     TP_LONG_NS; the time of its wakes is not its own. What is unknown is long: it wakes at once. Short is: over in TP_SHORT_NS; or, if roots come
 *     one after the other, so that who is woken for one is there for the next, in TP_SHORT_HOT_NS.
 * A3  The worst case is a long run after short ones: its forks wait TP_ALARM_NS for the first thief.
 * A4  A worker *cycles* while it goes through tasks whose average is below TP_SHORT_TASK_NS. A wake for tasks
 *     posted from outside is left out while some worker cycles; one for what a worker posts or leaves, if
 *     its own tasks are short and what it leaves is over in TP_SHORT_NS by its average. A worker that has
 *     finished nothing between two ticks does not cycle. If tasks wait while nobody does, the guess was
 *     wrong: nothing of this kind is deferred for TP_MISSED_NS.
 * A5  The timer ticks on while wakes are deferred, so that who defers pays for a system call only after a
 *     pause; after a tick without any it stops. An idle pool has no timer.
 *
 * TP_ALARM_NS lies beyond the kernel's next tick on purpose: an earlier expiry makes timerfd_settime
 * reprogram the clock device (8 us in a virtual machine, measured), a later one costs 0.4 to 1.3 us.
 *
 * The thread is started with the first deferral, and blocks in read(timerfd).
 */
#ifndef TP_SCHED_ALARM_H
#define TP_SCHED_ALARM_H

#include <pthread.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "sync/lock.h"

#define TP_ALARM_NS      (5 * TP_NS_PER_MS)
#define TP_SHORT_NS      (60 * TP_NS_PER_US)
#define TP_SHORT_HOT_NS  (15 * TP_NS_PER_US)
#define TP_SHORT_TASK_NS (10 * TP_NS_PER_US)
#define TP_LONG_NS       (2 * TP_SHORT_NS) /* all that is longer, or unknown, counts as this */
#define TP_MISSED_NS     (100 * TP_NS_PER_MS)
enum { TP_ROOTS = 64 };

struct tp_sched;
struct tp_worker;

/* Of a seat. */
typedef struct tp_deferral {
  _Atomic bool cycles; /* counted in cyclers; whoever changes it counts */
  uint64_t executed;   /* [alarm] at the last tick */
  _Atomic uint64_t
      since_ns;      /* [W] writes, the alarm reads: when a wake was first left out; 0: none is */
  uint64_t began_ns; /* [W] when this root first wanted a wake; 0: it did not */
  uint64_t ended_ns; /* [W] when the last root that wanted one was over */
  uint64_t short_ns; /* [W] what is short for this root (A2) */
} tp_deferral;

typedef struct tp_alarm {
  TP_ALIGNED _Atomic uint32_t armed;
  _Atomic uint32_t cyclers; /* workers that cycle (A4) */
  _Atomic bool missed; /* no task's wake is deferred (A4); the alarm sets it, maintain clears it */
  _Atomic bool stop;
  _Atomic int state; /* 0 not started, 1 runs, -1 cannot be had: everything wakes at once */
  int timer;
  tp_lock lock; /* guards the start */
  pthread_t thread;
  uint64_t deferred;          /* [alarm] wakes deferred until the last tick (A5) */
  _Atomic uint64_t missed_ns; /* when */
  TP_ALIGNED _Atomic uint32_t
      usual_ns[TP_ROOTS]; /* A2, by a hash of the root's function; 0: unknown */
} tp_alarm;

/* [W] A fork wants a wake. True: it is left to the alarm. */
bool tp_alarm_defer(struct tp_worker *w);

/* [W] Wakes for its forks took so long (A2). */
void tp_alarm_woke(struct tp_worker *w, uint64_t ns);

/* [any] Make sure that the alarm looks within TP_ALARM_NS. False: there is no alarm. */
bool tp_alarm_arm(struct tp_sched *s);

/* [any] n tasks were posted by `by` (NULL: from outside), and nobody idles. True: the wake is left to the alarm
 * (A4). */
bool tp_alarm_defer_tasks(struct tp_sched *s, struct tp_worker *by, size_t n);

/* [W, the alarm] Whether the worker cycles (A4). */
void tp_alarm_cycles(struct tp_worker *w, bool does);

/* [W] The root that set began_ns has ended. */
void tp_alarm_root_over(struct tp_worker *w);

/* [any] End the thread. */
void tp_alarm_stop(struct tp_sched *s);

#endif
