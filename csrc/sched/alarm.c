#include "sched/alarm.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "sched/find.h"
#include "sched/post.h"
#include "sched/sched.h"
#include "sched/stop.h"

/* First after `ns`, 0: not any more; then every TP_ALARM_NS. */
static bool set_timer(tp_alarm *a, uint64_t ns) {
  struct itimerspec t = {.it_value = {0, (long)ns}, .it_interval = {0, TP_ALARM_NS}};
  return timerfd_settime(a->timer, 0, &t, NULL) == 0;
}

void tp_alarm_cycles(tp_worker *w, bool does) {
  if (tp_load(&w->deferral.cycles, relaxed) == does) return;
  if (tp_swap(&w->deferral.cycles, does, relaxed) == does)
    return; /* a hint: nothing is ordered by it */
  if (does)
    tp_add(&w->sched->alarm.cyclers, 1, relaxed);
  else
    tp_sub(&w->sched->alarm.cyclers, 1, relaxed);
}

/* True: some deferral is too young to decide. Wakes for those that are not. */
static bool look(tp_sched *s) {
  bool young = false, jobs = false;
  size_t tasks = tp_visible_tasks(s);
  uint64_t now = tp_now_ns();
  for (unsigned i = 0; i <= s->workers; i++) {
    tp_worker *w = &s->seats[i];
    uint64_t since = tp_load(&w->deferral.since_ns, seq_cst); /* A1 */
    if (since && tp_deque_any(&w->front)) {
      if (now < since + TP_SHORT_NS)
        young = true;
      else
        jobs = true;
    }
    uint64_t executed = tp_load(&w->count.executed, relaxed);        /* a recent one will do */
    if (executed == w->deferral.executed) tp_alarm_cycles(w, false); /* A4 */
    w->deferral.executed = executed;
  }
  bool woke = (jobs || tasks) && tp_posted_by_alarm(s, jobs, tasks);
  if (woke && tasks && !tp_load(&s->alarm.cyclers, relaxed)) { /* A4 */
    tp_store(&s->alarm.missed_ns, now, relaxed);
    tp_store(&s->alarm.missed, true, relaxed);
  }
  return young;
}

/* Whether wakes were deferred since the last tick. */
static bool still_deferring(tp_sched *s) {
  uint64_t sum = 0;
  for (unsigned i = 0; i <= s->workers; i++) /* recent values will do (A5) */
    sum += tp_load(&s->seats[i].count.wakes_deferred, relaxed);
  bool more = sum != s->alarm.deferred;
  s->alarm.deferred = sum;
  return more;
}

static void *alarm_main(void *arg) {
  tp_sched *s = arg;
  tp_alarm *a = &s->alarm;
  uint64_t expirations;
  pthread_setname_np(pthread_self(), "tp-alarm");
  tp_stoppable stoppable;
  tp_stop_enter(&stoppable);
  while (!tp_load(&a->stop, seq_cst)) {
    if (read(a->timer, &expirations, sizeof expirations) < 0) continue; /* interrupted */
    if (still_deferring(s)) {
      look(s);
      continue;
    }
    set_timer(a, 0);
    if (tp_load(&a->stop, seq_cst)) break; /* it may have undone the timer of tp_alarm_stop */
    tp_swap(&a->armed, 0, seq_cst);        /* A1: first stop and clear, then look */
    tp_fence(); /* pairs with that of whoever posted before it read `armed` */
    if (look(s)) tp_alarm_arm(s);
  }
  tp_stop_leave(&stoppable);
  return NULL;
}

static bool start(tp_sched *s) {
  tp_alarm *a = &s->alarm;
  tp_lock_acquire(&a->lock);
  int state = tp_load(&a->state, relaxed); /* written under the lock */
  if (state == 0) {
    a->timer = tp_fail_now() ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (a->timer < 0) {
      state = -1;
    } else if (tp_thread_start(&a->thread, alarm_main, s) != 0) {
      close(a->timer);
      state = -1;
    } else {
      state = 1;
    }
    tp_store(&a->state, state, release); /* pairs with the acquire in tp_alarm_arm: timer is seen */
  }
  tp_lock_release(&a->lock);
  return state > 0;
}

bool tp_alarm_arm(tp_sched *s) {
  tp_alarm *a = &s->alarm;
  if (tp_load(&a->armed, seq_cst)) return true; /* A1: it is going to look after this load */
  int state = tp_load(&a->state, acquire);
  if (state < 0 || (state == 0 && !start(s))) return false;
  if (tp_swap(&a->armed, 1, seq_cst) || set_timer(a, TP_ALARM_NS)) return true;
  tp_store(&a->state, -1, relaxed); /* it cannot fail, but then nobody shall count on it */
  tp_store(&a->armed, 0, seq_cst);
  return false;
}

static _Atomic uint32_t *usual_of(tp_sched *s, const void *root) {
  return &s->alarm.usual_ns[((uintptr_t)root * 0x9e3779b97f4a7c15ull) >> 58];
}

bool tp_alarm_defer(tp_worker *w) {
  tp_deferral *d = &w->deferral;
  /* The clock costs as much as all the rest of an exposure: one look in eight is enough. */
  bool deferred = tp_load(&d->since_ns, relaxed) != 0; /* our own */
  if (deferred && tp_load(&w->count.exposed, relaxed) % 8 &&
      tp_load(&w->sched->alarm.armed, seq_cst))
    return true; /* A1: exposed before `armed` was read */
  uint64_t now = tp_now_ns();
  if (!d->began_ns) {
    d->began_ns = now;
    d->short_ns = now < d->ended_ns + TP_SHORT_NS ? TP_SHORT_HOT_NS : TP_SHORT_NS;
    uint32_t usual = tp_load(usual_of(w->sched, w->root), relaxed); /* a hint, A2 */
    if (usual == 0 || usual >= d->short_ns) d->short_ns = 0;
  }
  if (now >= d->began_ns + d->short_ns) return false;
  if (!deferred) tp_store(&d->since_ns, now, seq_cst); /* A1: before `armed` */
  if (!tp_alarm_arm(w->sched)) return false;
  tp_bump(&w->count.wakes_deferred, 1);
  return true;
}

bool tp_alarm_defer_tasks(tp_sched *s, tp_worker *by, size_t n) {
  tp_alarm *a = &s->alarm;
  if (tp_load(&a->missed, relaxed)) return false; /* hints, all of them */
  if (by ? by->average_ns >= TP_SHORT_TASK_NS || n * by->average_ns >= TP_SHORT_NS
         : tp_load(&a->cyclers, relaxed) == 0)
    return false;
  if (!tp_alarm_arm(s)) return false;
  if (by) tp_bump(&by->count.wakes_deferred, 1); /* those outside would share a line for it */
  return true;
}

void tp_alarm_woke(tp_worker *w, uint64_t ns) {
  if (w->deferral.began_ns) w->deferral.began_ns += ns;
}

void tp_alarm_root_over(tp_worker *w) {
  tp_deferral *d = &w->deferral;
  d->ended_ns = tp_now_ns();
  uint64_t took = d->ended_ns - d->began_ns;
  _Atomic uint32_t *usual = usual_of(w->sched, w->root);
  uint64_t before = tp_load(usual, relaxed); /* a lost update of a hint does no harm */
  if (before == 0) before = TP_LONG_NS;
  if (took > TP_LONG_NS) took = TP_LONG_NS;
  tp_store(usual, (uint32_t)((before + took) / 2), relaxed);
  d->began_ns = 0;
  tp_store(&d->since_ns, 0, relaxed); /* late news only makes the alarm look in vain */
}

void tp_alarm_stop(tp_sched *s) {
  tp_alarm *a = &s->alarm;
  if (tp_load(&a->state, acquire) <= 0) return;
  tp_store(&a->stop, true, seq_cst);
  set_timer(a, 1);
  pthread_join(a->thread, NULL);
  close(a->timer);
}
