#include "sched/post.h"

#include "base/assert.h"
#include "sched/find.h"

/* Counters of a seat have one writer; those who have no seat share one set, which wakes alone touch. */
#define COUNT(s, by, name)                                                                         \
  do {                                                                                             \
    if (by)                                                                                        \
      tp_bump(&(by)->count.name, 1);                                                               \
    else                                                                                           \
      tp_add(&(s)->outside.name, 1, relaxed);                                                      \
  } while (0)

/* Swap the latch of a seat whose bit was claimed to SET. True: it will search now.
 * S6: whoever moves it from SLEEPING to SET, and nobody else, takes it out of the count. */
static bool set_idle(tp_worker *w) {
  switch (tp_latch_set(&w->idle)) {
  case TP_SLEEPING:
    tp_sleep_uncommit(&w->sched->sleep);
    tp_latch_wake(&w->idle);
    return true;
  case TP_SLEEPY: return true; /* it undoes its own registration */
  default: return false;       /* it was awake already: a late SET (S7) */
  }
}

static bool wake_sleeper(tp_sched *s) {
  for (int i = -1; (i = tp_bitmap_claim(&s->sleep.sleepers, (unsigned)(i + 1))) >= 0;)
    if (set_idle(&s->seats[i])) return true;
  return false;
}

bool tp_wake_join(tp_worker *w) {
  uint32_t was = tp_latch_set(&w->join);
  if (was == TP_SLEEPING) tp_latch_wake(&w->join);
  return was == TP_SLEEPING || was == TP_SLEEPY;
}

static bool wake_waiter(tp_sched *s) {
  for (int i = -1; (i = tp_bitmap_claim(&s->sleep.waiters, (unsigned)(i + 1))) >= 0;)
    if (tp_wake_join(&s->seats[i])) return true;
  return false;
}

void tp_wake_seat(tp_worker *w) {
  if (tp_bitmap_clear(&w->sched->sleep.sleepers, w->index)) set_idle(w);
}

/* How many sleepers are to be woken for n tasks. */
static size_t wanted(tp_sched *s, tp_worker *by, size_t n) {
  uint64_t c = tp_sleep_posted(&s->sleep);
  unsigned sleeping = tp_sleeping_of(c), idle = tp_idle_of(c);
  if (tp_likely(sleeping == 0 || n <= idle)) return 0;
  n -= idle;
  if (tp_alarm_defer_tasks(s, by, n)) return 0;
  return n < sleeping ? n : sleeping;
}

void tp_posted(tp_sched *s, tp_worker *by, size_t n) {
  for (n = wanted(s, by, n); n > 0 && wake_sleeper(s); n--) COUNT(s, by, wakes_by_post);
}

void tp_posted_jobs(tp_worker *by, size_t n, bool defer) {
  tp_sched *s = by->sched;
  uint64_t c = tp_sleep_posted(&s->sleep);
  unsigned idle = tp_idle_of(c);
  if (n <= idle) return;
  n -= idle;
  if (tp_sleeping_of(c) > 0) {
    if (defer && tp_alarm_defer(by)) return;
    uint64_t begin = tp_now_ns();
    while (n > 0 && wake_sleeper(s)) {
      n--;
      tp_bump(&by->count.wakes_by_post, 1);
    }
    tp_alarm_woke(by, tp_now_ns() - begin);
  }
  while (n > 0 && tp_bitmap_any(&s->sleep.waiters) && wake_waiter(s)) {
    n--;
    tp_bump(&by->count.wakes_of_waiter, 1);
  }
}

bool tp_posted_by_alarm(tp_sched *s, bool jobs, size_t tasks) {
  if (tp_idle_of(tp_sleep_posted(&s->sleep)) > 0) return false;
  uint64_t woken = 0;
  while (woken < jobs + tasks && wake_sleeper(s)) woken++;
  if (!woken && jobs && wake_waiter(s)) woken++;
  tp_add(&s->outside.wakes_by_alarm, woken, relaxed);
  return woken > 0;
}

tp_inlet *tp_inlet_enter(tp_sched *s) {
  static _Atomic unsigned threads;
  static _Thread_local unsigned number __attribute__((tls_model("initial-exec")));
  if (tp_unlikely(!number)) number = tp_add(&threads, 1, relaxed) + 1;
  tp_inlet *in = &s->inlets[number % TP_INLETS];
  tp_lock_acquire(&in->lock);
  return in;
}

void tp_inlet_post(tp_sched *s, tp_inlet *in, tp_priority p, tp_work *work) {
  tp_queue_put(&s->queue[p], in, p, work);
  if (tp_likely(!wanted(s, NULL, 1))) {
    tp_lock_release(&in->lock); /* the last touch: the work may have run, and the pool be gone */
    return;
  }
  tp_add(&in->wakers, 1, relaxed); /* seen by whoever takes the lock next */
  tp_lock_release(&in->lock);      /* a woken worker is going to need it */
  if (wake_sleeper(s)) tp_add(&s->outside.wakes_by_post, 1, relaxed);
  tp_sub(&in->wakers, 1, release); /* pairs with the acquire in tp_inlets_quiesce */
}

void tp_inlets_quiesce(tp_sched *s) {
  for (unsigned i = 0; i < TP_INLETS; i++) {
    tp_inlet *in = &s->inlets[i];
    tp_lock_acquire(&in->lock);
    tp_lock_release(&in->lock);
    while (tp_load(&in->wakers, acquire)) sched_yield(); /* a futex wake at most */
  }
}

void tp_post(tp_sched *s, tp_priority p, tp_work *work) {
  tp_inlet_post(s, tp_inlet_enter(s), p, work);
}

/* Into the ring, or half of the ring to the global queue. Not a barrier. Returns how many were posted. */
static size_t push(tp_worker *w, tp_work *work) {
  tp_chain overflow = {0};
  tp_ring_push(&w->ring, work, &overflow);
  if (tp_likely(!overflow.first)) return 1;
  size_t n = overflow.length;
  if (n > 1) tp_bump(&w->count.overflowed, 1);
  tp_queue_append(&w->sched->queue[TP_NORMAL], &overflow);
  return n;
}

void tp_post_last(tp_worker *w, tp_work *work) {
  TP_ASSERT(w == tp_self(), "a seat is posted to by its own thread");
  size_t n = push(w, work);
  tp_fence(); /* S3: the publication before the look at the counters */
  tp_posted(w->sched, w, n);
}

void tp_post_next(tp_worker *w, tp_work *work) {
  TP_ASSERT(w == tp_self(), "a seat is posted to by its own thread");
  tp_work *evicted = tp_swap(&w->lifo, work, seq_cst); /* S3; releases `work` to a thief */
  if (evicted) {
    tp_post_last(w, evicted);
    return;
  }
  /* This worker takes it back in a moment if its tasks are short: not worth a wake (A4). */
  tp_posted(w->sched, w, 1);
}

void tp_post_to(tp_worker *target, tp_work *work) {
  tp_work *top = tp_load(&target->directed, relaxed); /* a guess, the CAS checks it */
  do work->next = top;
  while (
      !tp_cas_weak(&target->directed, &top, work, seq_cst)); /* S3; pairs with tp_take_directed */
  tp_wake_seat(target);
  tp_wake_join(target); /* if it does not wait for a job, it finds a late SET the next time (S7) */
}

void tp_post_found(tp_worker *w) {
  TP_ASSERT(w == tp_self(), "found by the thread in the seat");
  tp_sched *s = w->sched;
  uint64_t c = tp_sleep_idle_ends(&s->sleep);
  tp_fence(); /* S5: no longer idle before the look; pairs with the poster's barrier (S3) */
  bool others = tp_inactive_of(c) > 0, waiters = tp_bitmap_any(&s->sleep.waiters);
  if (tp_likely(!others && !waiters)) return;
  /* S5. Not only a wake: what we have moved (half a ring, a batch) was out of sight meanwhile, so JEC has
   * to become odd for those who are just falling asleep. */
  bool jobs = tp_visible_jobs(s);
  if (!jobs && !(others && tp_visible_tasks(s))) return;
  c = tp_sleep_posted(&s->sleep);
  if (tp_idle_of(c) > 0) return;
  if (!jobs && tp_alarm_defer_tasks(s, w, 1)) return;
  if (tp_sleeping_of(c) > 0 && wake_sleeper(s))
    tp_bump(&w->count.wakes_by_finder, 1);
  else if (jobs && wake_waiter(s))
    tp_bump(&w->count.wakes_of_waiter, 1);
}

void tp_post_pass_on(tp_worker *w) {
  if (tp_visible_jobs(w->sched)) tp_posted_jobs(w, 1, false);
}
