/* worker.c - the loop of a thread in a seat: run what is there, search, sleep. docs/SLEEP.md 4.1. */
#include "base/cpus.h"
#include "base/error.h"
#include "base/thread.h"
#include "sched/find.h"
#include "sched/fork.h"
#include "sched/guard.h"
#include "sched/post.h"
#include "sched/sched.h"

enum { ROUNDS = 32, SAMPLE_LEAST = 16 };

_Thread_local tp_worker *tp_seat __attribute__((tls_model("initial-exec")));

/* Once in TP_BUDGET polls, and when a worker that was busy finds nothing more: the clock, and from it how
 * often the global queue is looked at, and whether tasks are short. */
static TP_NOINLINE void maintain(tp_worker *w) {
  uint64_t now = tp_now_ns();
  uint64_t sample = (now - w->budget_began_ns) / w->polls;
  w->average_ns = (9 * w->average_ns + sample) / 10;
  uint64_t interval = TP_NS_PER_MS / (w->average_ns + 1);
  if (interval < TP_INTERVAL_MIN) interval = TP_INTERVAL_MIN;
  if (interval > TP_INTERVAL_MAX) interval = TP_INTERVAL_MAX;
  w->interval = (unsigned)interval;
  tp_alarm_cycles(w, w->average_ns < TP_SHORT_TASK_NS);
  tp_alarm *a = &w->sched->alarm;
  if (tp_load(&a->missed, relaxed) && now > tp_load(&a->missed_ns, relaxed) + TP_MISSED_NS)
    tp_store(&a->missed, false, relaxed); /* a hint (A4) */
  w->budget_began_ns = now;
  w->polls = 0;
  tp_find_relief(w, now);
}

/* The limit on those who steal: at most half the workers (at least one) in rounds 0 to 31. */
static bool may_search(tp_worker *w) {
  if (w->searching) return true;
  tp_sched *s = w->sched;
  unsigned n = tp_load(&s->searchers, relaxed); /* a limit, not a lock: nothing is ordered by it */
  while (n < s->searchers_most)
    if (tp_cas_weak(&s->searchers, &n, n + 1, relaxed)) return w->searching = true;
  return false;
}

static void stop_searching(tp_worker *w) {
  if (w->searching) tp_sub(&w->sched->searchers, 1, relaxed);
  w->searching = false;
}

static bool anything_own(tp_worker *w) {
  return tp_load(&w->directed, seq_cst) || tp_load(&w->sched->stop, seq_cst);
}

/* Steps 4 to 8. False: something came, search from round 32; else it has slept, or was told to look. */
static bool fall_asleep(tp_worker *w, uint64_t jec) {
  tp_sched *s = w->sched;
  tp_sleep *z = &s->sleep;
  if (!tp_latch_sleepy(&w->idle)) { /* step 4; S7: a late SET of an earlier sleep */
    tp_latch_reset(&w->idle);
    return true;
  }
  tp_bitmap_set(&z->sleepers, w->index);
  if (!tp_sleep_commit(z, jec)) { /* step 5 */
    tp_bitmap_clear(&z->sleepers, w->index);
    tp_latch_reset(&w->idle);
    return false;
  }
  bool work = anything_own(w); /* step 6; ordered by the CAS of step 5 */
  for (int p = 0; p < TP_PRIORITIES; p++) work = work || tp_queue_any(&s->queue[p]);
  if (work || !tp_latch_sleep(&w->idle)) { /* step 7 */
    tp_bitmap_clear(&z->sleepers, w->index);
    tp_sleep_uncommit(z);
    tp_latch_reset(&w->idle);
    return true;
  }
  tp_bump(&w->count.parked, 1);
  tp_latch_block(&w->idle,
                 s->park_timeout_ms ? tp_now_ns() + s->park_timeout_ms * TP_NS_PER_MS : 0);
  uint32_t asleep = TP_SLEEPING;
  if (tp_cas(&w->idle, &asleep, TP_UNSET, seq_cst))
    tp_sleep_uncommit(z); /* the time is up: S6 */
  else
    tp_bump(&w->count.woken, 1);
  tp_bitmap_clear(&z->sleepers, w->index); /* before the reset: a later claim is a late SET */
  tp_latch_reset(&w->idle);
  return true;
}

/* Idle: search, and sleep when there is nothing. False: the pool stops. */
static TP_NOINLINE bool search(tp_worker *w, tp_found *f) {
  tp_sched *s = w->sched;
  if (w->polls >= SAMPLE_LEAST) maintain(w);
  tp_alarm_cycles(w, false);
  tp_sleep_idle_begins(&s->sleep);
  bool found = false;
  for (unsigned round = 0; !found; round++) {
    if (anything_own(w)) break;
    if (round < ROUNDS) {
      found = tp_find_global(w, f) || (may_search(w) && tp_find_steal(w, f));
      if (found) break;
      if (s->idle_yield)
        sched_yield();
      else
        for (unsigned i = 0; i < round; i++) tp_pause();
      continue;
    }
    stop_searching(w);
    uint64_t jec = tp_sleep_announce(&s->sleep);         /* round 32 */
    found = tp_find_global(w, f) || tp_find_steal(w, f); /* round 33, without a limit */
    if (found) break;
    /* Seen but not taken: somebody else is just taking it, or only part of it. */
    if (tp_visible_jobs(s) || tp_visible_tasks(s))
      tp_pause();
    else if (fall_asleep(w, jec))
      round = (unsigned)-1; /* else round 32 again */
  }
  stop_searching(w);
  w->budget_began_ns = tp_now_ns();
  w->polls = 0;
  if (f->work && w->average_ns < TP_SHORT_TASK_NS) tp_alarm_cycles(w, true);
  tp_post_found(w);
  return found || tp_load(&w->directed, seq_cst) || !tp_load(&s->stop, seq_cst);
}

/* Not guarded (X1), though it may be run while a guarded function waits. */
void tp_run_directed(tp_worker *w) {
  tp_barrier b = tp_barrier_begin(w);
  for (tp_work *work = tp_take_directed(w), *next; work; work = next) {
    next = work->next;
    w->tied++;
    work->run(w, work);
    w->tied--;
  }
  tp_barrier_end(w, b);
}

void tp_worker_run(tp_worker *w) {
  tp_sched *s = w->sched;
  if (s->pin) tp_thread_pin(tp_cpus_nth(&s->cpus, w->index), &s->cpus);
  tp_seat = w;
  w->budget_began_ns = tp_now_ns();
  w->polls = 0;
  for (;;) {
    tp_found f = {0};
    if (tp_unlikely(tp_load(&w->directed, relaxed))) {
      w->root = NULL;
      tp_run_directed(w);
      if (w->deferral.began_ns) tp_alarm_root_over(w);
    }
    if (!tp_find_next(w, &f) && !search(w, &f)) break;
    if (f.job) {
      w->root = (const void *)f.job->fn;
      tp_run_job(w, f.job, f.segment, true);
    } else if (f.work) {
      f.work->run(w, f.work);
    } else {
      continue;
    }
    if (tp_unlikely(tp_seat != w)) return; /* it has left the seat */
    tp_bump(&w->count.executed, 1);
    if (tp_unlikely(w->deferral.began_ns)) tp_alarm_root_over(w);
    if (tp_unlikely(w->doomed)) { /* X8 */
      tp_worker_retire(w);
      if (tp_seat != w) return;
    }
    if (tp_unlikely(++w->polls >= TP_BUDGET)) maintain(w);
  }
  tp_seat = NULL;
  tp_threads_unseat(&s->threads);
}

/* Everything we wrote in the seat is released by the lock of the threads to whoever sits in it next. `how` starts
 * it. */
static int give_away(tp_worker *w, int (*how)(tp_threads *t, tp_work *seat)) {
  tp_sched *s = w->sched;
  tp_critical_begin();
  if (w->deferral.began_ns) tp_alarm_root_over(w);
  bool doomed = w->doomed;
  uint32_t depth = tp_load(&w->segments.depth, relaxed); /* our own */
  w->doomed = false;
  tp_store(&w->segments.depth, 0, release); /* X2: guarded functions that go on without a seat */
  tp_seat = NULL;
  tp_bump(&w->count.substitutes, 1);
  int error = how(&s->threads, &w->sit);
  if (error) {
    tp_store(&w->count.substitutes, tp_load(&w->count.substitutes, relaxed) - 1, relaxed);
    tp_store(&w->segments.depth, depth, release);
    w->doomed = doomed;
    tp_seat = w;
  } else {
    if (doomed) tp_threads_retire();
    if (s->pin) tp_thread_pin(-1, &s->cpus);
  }
  tp_critical_end();
  return error;
}

static int to_a_substitute(tp_threads *t, tp_work *seat) {
  int error = tp_threads_run(t, seat, TP_THREAD_SEAT);
  if (!error) tp_threads_unseat(t);
  return error;
}

int tp_worker_leave(void) {
  tp_worker *w = tp_seat;
  if (!w || w->index == w->sched->workers) return ERR_WRONG_THREAD;
  /* What is private is not counted, but it is in the deque. */
  if (w->tied || w->front.bottom != tp_load(&w->front.top, relaxed)) return ERR_WRONG_THREAD;
  return give_away(w, to_a_substitute);
}

void tp_worker_retire(tp_worker *w) {
  if (give_away(w, tp_threads_replace) != 0) w->doomed = false; /* better than to lose the seat */
}
