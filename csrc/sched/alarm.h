/* alarm.h - wakes that come later, or not at all if the work was over by then.
 *
 * A futex wake costs the waker some 6 us; a tree of 2,047 forks takes 1.4. So a fork by a *root* (the
 * function of a call, a task, a stolen job) whose last runs were over sooner than a wake would have helped
 * does not wake: it notes the time, and arms a timer if none is armed. Later forks of the same root wake
 * after all when the time is up; and if it never forks again, the timer's thread does it. Tasks are treated
 * the same way: while they are short and somebody runs, a wake for a few of them is left to the alarm.
 *
 * A1  While something is deferred the timer is armed, or its thread is about to look: the deferral is
 *     stored before `armed` is read, and the thread clears `armed` before it looks (both seq-cst).
 * A2  A root is short after TP_SHORT_RUNS runs in a row that were over in TP_SHORT_NS; one longer run and
 *     it is long again. What is unknown is long: it wakes at once.
 * A4  Tasks are short while the average of a worker that lately finished some says so (TP_SHORT_TASK_NS).
 *     Then a wake is left out if somebody runs and what waits, as far as the poster knows, is over in
 *     TP_WAKE_NS. Whoever takes work and leaves more than that wakes. If the alarm finds tasks beside a
 *     sleeper, tasks count as long until the next average.
 * A3  The worst case is a long run after short ones: its forks wait TP_ALARM_NS for the first thief.
 *
 * TP_ALARM_NS lies beyond the kernel's next tick on purpose: an earlier expiry makes timerfd_settime
 * reprogram the clock device (8 us in a virtual machine, measured), a later one costs 0.4 to 1.3 us.
 *
 * The thread is started with the first deferral, and blocks in read(timerfd) while nothing is armed.
 */
#ifndef TP_SCHED_ALARM_H
#define TP_SCHED_ALARM_H

#include <pthread.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "sync/lock.h"

#define TP_ALARM_NS      (5 * TP_NS_PER_MS)
#define TP_SHORT_NS      (25 * TP_NS_PER_US)
#define TP_SHORT_TASK_NS (10 * TP_NS_PER_US)
#define TP_WAKE_NS       (50 * TP_NS_PER_US) /* from the decision until a woken worker helps */
enum { TP_SHORT_RUNS = 4, TP_ROOTS = 64 };

struct tp_sched;
struct tp_worker;

/* Of a seat. */
typedef struct tp_deferral {
  _Atomic uint64_t
      since_ns;      /* [W] writes, the alarm reads: when a wake was first left out; 0: none is */
  uint64_t began_ns; /* [W] when this root first wanted a wake; 0: it did not */
} tp_deferral;

typedef struct tp_alarm {
  _Atomic uint32_t armed;
  _Atomic uint8_t shorts[TP_ROOTS]; /* A2: short runs in a row, by a hash of the root's function */
  tp_lock lock;                     /* guards the start */
  _Atomic int state; /* 0 not started, 1 runs, -1 cannot be had: everything wakes at once */
  _Atomic bool stop;
  int timer;
  pthread_t thread;
} tp_alarm;

/* [W] A fork wants a wake. True: it is left to the alarm. */
bool tp_alarm_defer(struct tp_worker *w);

/* [any] Make sure that the alarm looks within TP_ALARM_NS. False: there is no alarm. */
bool tp_alarm_arm(struct tp_sched *s);

/* [any] n tasks were posted by `by` (NULL: from outside), nobody idles, and `running` workers run or wait for
 * jobs. True: the wake is left to the alarm (A4). */
bool tp_alarm_defer_tasks(struct tp_sched *s, struct tp_worker *by, unsigned running, size_t n);

/* [W] The root that set began_ns has ended. */
void tp_alarm_root_over(struct tp_worker *w);

/* [any] End the thread. */
void tp_alarm_stop(struct tp_sched *s);

#endif
