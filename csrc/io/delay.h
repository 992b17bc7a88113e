/* delay.h - a task's timers: wake it at a time, or end it by a deadline.
 *
 * Depends on: io/reactor.h, task/task.h. A tp_alarm_clock is the task's own memory (part of its arg); stop it in the
 * task's `end`, which is always called.
 *
 * N1  A started clock holds a reference to its task, which whoever ends the wait gives back: the one that
 *     fires, or the stop that came before (R5: exactly one of them).
 * N2  After the stop has returned the clock's memory is not touched any more.
 */
#ifndef TP_IO_DELAY_H
#define TP_IO_DELAY_H

#include "io/reactor.h"
#include "task/task.h"

typedef struct tp_alarm_clock {
  tp_timer timer; /* first: the timer is the clock */
  tp_reactor *reactor;
  tp_task *task;
  bool cancels; /* a deadline */
  _Atomic bool fired;
} tp_alarm_clock;

/* [runner] Wake the task when the monotonic clock has reached deadline_ns. Zeroed, or over. 0, or the errors of
 * tp_timer_start. */
int tp_sleep_start(tp_alarm_clock *c, tp_reactor *r, tp_task *t, uint64_t deadline_ns);

/* [any, holding the task] Cancel the task then. Its `end` finds out by tp_clock_stop, and may make the code
 * ERR_TIMEOUT. */
int tp_deadline_start(tp_alarm_clock *c, tp_reactor *r, tp_task *t, uint64_t deadline_ns);

/* [any] Whether the time has come. */
static inline bool tp_clock_fired(const tp_alarm_clock *c) {
  return tp_load(&c->fired, acquire);
}

/* [runner] Also if it was never started or has fired. True: it has fired. */
bool tp_clock_stop(tp_alarm_clock *c);

#endif
