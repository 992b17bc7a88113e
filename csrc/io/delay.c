#include "io/delay.h"

#include "base/alloc.h"

static void fire(tp_timer *timer) {
  tp_alarm_clock *c = (tp_alarm_clock *)timer;
  tp_task *t = c->task;
  bool cancels = c->cancels;
  /* Until this callback has returned a stop waits (N2); but the task's wake may run it to its end on another
   * thread at once, so the clock is not looked at after the next line. */
  tp_store(&c->fired, true, release);
  if (cancels)
    tp_task_cancel(t);
  else
    tp_task_wake(t);
  tp_task_unref(t); /* N1 */
}

static int start(tp_alarm_clock *c, tp_reactor *r, tp_task *t, uint64_t deadline_ns, bool cancels) {
  c->reactor = r;
  c->task = tp_task_ref(t);
  c->cancels = cancels;
  tp_store(&c->fired, false, relaxed); /* before the timer is started, whose lock publishes it */
  int error, failed = 0;               /* at the reactor's first use: no thread, no descriptor */
  do error = tp_timer_start(r, &c->timer, deadline_ns, fire);
  while (tp_unlikely(error) && error != ERR_SHUTDOWN && tp_try_again(&failed));
  if (error) tp_task_unref(t);
  return error;
}

int tp_sleep_start(tp_alarm_clock *c, tp_reactor *r, tp_task *t, uint64_t deadline_ns) {
  return start(c, r, t, deadline_ns, false);
}

int tp_deadline_start(tp_alarm_clock *c, tp_reactor *r, tp_task *t, uint64_t deadline_ns) {
  return start(c, r, t, deadline_ns, true);
}

bool tp_clock_stop(tp_alarm_clock *c) {
  if (c->reactor && tp_timer_stop(c->reactor, &c->timer)) tp_task_unref(c->task); /* N1 */
  return tp_clock_fired(c);
}
