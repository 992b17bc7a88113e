#include "sched/find.h"

#include "sched/guard.h"
#include "sched/post.h"

/* Take from one global queue: one to run, the rest of a batch into the ring, where others can reach it.
 * High and low come one by one: in the ring they would lose their rank. */
static bool take_global(tp_worker *w, tp_priority p, tp_found *f) {
  tp_sched *s = w->sched;
  unsigned most = 1;
  if (p == TP_NORMAL) {
    unsigned room = tp_ring_room(&w->ring);
    most = room < TP_BATCH_MOST ? room + 1 : TP_BATCH_MOST;
  }
  tp_chain batch = {0};
  size_t visible = tp_queue_take(&s->queue[p], s->workers, most, &batch);
  size_t taken = batch.length;
  f->work = tp_chain_take(&batch);
  for (tp_work *more; (more = tp_chain_take(&batch)); visible++) {
    tp_chain none = {0};
    tp_ring_push(&w->ring, more, &none); /* there is room */
  }
  if (visible) { /* G2: what is left counts as just posted */
    tp_fence();
    tp_posted(s, w, visible);
  }
  if (!taken) return false;
  if (taken > 1) tp_bump(&w->count.batches, 1);
  if (p == TP_HIGH)
    tp_bump(&w->count.from_high, taken);
  else if (p == TP_NORMAL)
    tp_bump(&w->count.from_normal, taken);
  else
    tp_bump(&w->count.from_low, taken);
  return true;
}

bool tp_find_global(tp_worker *w, tp_found *f) {
  static const uint8_t order[3][TP_PRIORITIES] = {
      {TP_HIGH, TP_NORMAL, TP_LOW}, {TP_NORMAL, TP_HIGH, TP_LOW}, {TP_LOW, TP_HIGH, TP_NORMAL}};
  /* Of each 8 fetches one begins with the low queue and one with the normal one: no starvation. */
  unsigned turn = w->fetches++ % TP_LOW_SHARE;
  const uint8_t *o = order[turn == TP_LOW_SHARE - 1 ? 2 : turn == TP_LOW_SHARE / 2 - 1 ? 1 : 0];
  for (int i = 0; i < TP_PRIORITIES; i++)
    if (tp_queue_any(&w->sched->queue[o[i]]) && take_global(w, (tp_priority)o[i], f)) return true;
  return false;
}

static bool take_lifo(tp_worker *from, tp_found *f) {
  if (!tp_load(&from->lifo, relaxed)) return false; /* only the owner fills it: empty is empty */
  f->work = tp_swap(&from->lifo, NULL, seq_cst);    /* acquires the work; pairs with tp_post_next */
  return f->work != NULL;
}

/* LIFO slot and ring; after TP_LIFO_MOST in a row from the slot the ring goes first. */
static bool take_own(tp_worker *w, tp_found *f) {
  if (w->lifo_streak < TP_LIFO_MOST && take_lifo(w, f)) {
    w->lifo_streak++;
    return true;
  }
  bool capped = w->lifo_streak >= TP_LIFO_MOST;
  w->lifo_streak = 0;
  f->work = tp_ring_pop(&w->ring);
  if (f->work) {
    if (capped) tp_bump(&w->count.lifo_capped, 1);
    return true;
  }
  return take_lifo(w, f);
}

bool tp_find_next(tp_worker *w, tp_found *f) {
  tp_sched *s = w->sched;
  f->work = NULL;
  f->segment = NULL; /* a job left here is a spawn */
  f->job = tp_deque_pop(&w->front);
  if (f->job) return true;
  if (tp_queue_any(&s->queue[TP_HIGH])) {
    /* One poll in 8 goes to the worker's own work even while high-priority tasks keep coming. */
    if (w->fetches % TP_LOW_SHARE == 1)
      w->fetches++;
    else if (tp_find_global(w, f))
      return true;
  }
  if (w->until_global-- == 0) {
    w->until_global = w->interval;
    if (tp_find_global(w, f)) return true;
  }
  return take_own(w, f) || tp_find_global(w, f);
}

static bool steal_job(tp_worker *w, tp_worker *victim, tp_found *f) {
  if (!tp_deque_offers(&victim->front)) return false;
  int64_t at;
  threadpool_job *job = tp_deque_look(&victim->front, &at);
  if (!job) return false;
  tp_segment *s = tp_segment_of(victim, at);
  if (s) tp_segment_more(s); /* X5: before it is ours */
  bool ours = tp_deque_take(&victim->front, at);
  if (s && (!ours || !job->owner)) { /* a spawn was counted when it was spawned */
    tp_segment_less(s);
    s = NULL;
  }
  if (!ours) return false;
  f->job = job;
  f->segment = s;
  tp_bump(&w->count.jobs_stolen, 1);
  tp_bump(&w->count.stolen, 1);
  return true;
}

static bool steal_task(tp_worker *w, tp_worker *victim, tp_found *f) {
  if (!tp_ring_empty(&victim->ring)) {
    f->work = tp_ring_steal(&victim->ring, &w->ring);
    if (!f->work) return false;
    tp_bump(&w->count.half_steals, 1);
  } else {
    if (!take_lifo(victim, f)) return false;
    tp_bump(&w->count.lifo_stolen, 1);
  }
  tp_bump(&w->count.stolen, 1);
  return true;
}

bool tp_find_steal(tp_worker *w, tp_found *f) {
  tp_sched *s = w->sched;
  unsigned seats = s->workers + 1, at = tp_rng_below(&w->rng, seats);
  for (unsigned i = 0; i < seats; i++, at = at + 1 == seats ? 0 : at + 1) {
    tp_worker *victim = &s->seats[at];
    if (victim == w) continue;
    if (steal_job(w, victim, f)) return true;
    if (at < s->workers && steal_task(w, victim, f)) return true; /* the main seat has no tasks */
  }
  return false;
}

bool tp_find_job(tp_worker *w, tp_found *f) {
  tp_sched *s = w->sched;
  unsigned seats = s->workers + 1, at = tp_rng_below(&w->rng, seats);
  for (unsigned i = 0; i < seats; i++, at = at + 1 == seats ? 0 : at + 1)
    if (&s->seats[at] != w && steal_job(w, &s->seats[at], f)) return true;
  return false;
}

void tp_find_relief(tp_worker *w, uint64_t now) {
  tp_sched *s = w->sched;
  if (now < w->watched_ns + TP_NS_PER_MS) return;
  tp_worker *victim = &s->seats[w->watched];
  tp_found f = {0};
  uint64_t executed = tp_load(&victim->count.executed, relaxed); /* a recent one will do */
  if (victim != w && executed == w->watched_count && steal_task(w, victim, &f))
    tp_post_last(w, f.work);
  w->watched = tp_rng_below(&w->rng, s->workers);
  w->watched_count = tp_load(&s->seats[w->watched].count.executed, relaxed);
  w->watched_ns = now;
}

tp_work *tp_take_directed(tp_worker *w) {
  if (!tp_load(&w->directed, seq_cst)) return NULL;
  tp_work *work = tp_swap(&w->directed, NULL, seq_cst), *oldest = NULL; /* pairs with tp_post_to */
  while (work) {
    tp_work *next = work->next;
    work->next = oldest;
    oldest = work;
    work = next;
  }
  return oldest;
}

bool tp_visible_jobs(tp_sched *s) {
  for (unsigned i = 0; i <= s->workers; i++)
    if (tp_deque_any(&s->seats[i].front)) return true;
  return false;
}

size_t tp_visible_tasks(tp_sched *s) {
  size_t n = 0;
  for (int p = 0; p < TP_PRIORITIES; p++)
    if (tp_queue_any(&s->queue[p]))
      n += 1 + tp_load(&s->queue[p].length, relaxed); /* a hint (G3) */
  for (unsigned i = 0; i < s->workers; i++)
    n += tp_ring_length(&s->seats[i].ring) + (tp_load(&s->seats[i].lifo, acquire) != NULL);
  return n;
}
