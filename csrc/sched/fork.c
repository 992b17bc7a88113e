#include "sched/fork.h"

#include "base/assert.h"
#include "base/error.h"
#include "sched/find.h"
#include "sched/guard.h"
#include "sched/post.h"
#include "sched/scope.h"

/* Jobs of others that may lie on one stack. Beyond it a waiter only waits: the job that runs deepest is
 * not waiting, so there is progress, and the stack stays bounded. */
enum { HELP_MOST = 128, ROUNDS = 32 };

void tp_job_done(tp_worker *waiter, tp_latch *done) {
  /* `waiter` was read before this swap; after it the job's memory is its owner's again. */
  if (tp_latch_set(done) == TP_SLEEPING) tp_wake_join(waiter);
}

void tp_run_job(tp_worker *w, threadpool_job *job, tp_segment *s, bool stolen) {
  tp_worker *owner = tp_worker_of(job->owner);
  if (!owner) s = tp_spawn_segment(job);
  if (tp_unlikely(s || tp_load(&w->segments.depth, relaxed))) { /* our own */
    tp_guard_job(w, job, s, stolen && s && owner);
    return;
  }
  w->tied++;
  job->fn(&w->front, job->arg);
  w->tied--;
  if (owner) tp_job_done(owner, &job->latch);
}

threadpool_job *tp_pop_job(tp_worker *w, tp_segment **s) {
  int64_t at = w->front.bottom - 1;
  threadpool_job *job = tp_deque_pop(&w->front);
  *s = job ? tp_segment_of(w, at) : NULL;
  return job;
}

void threadpool_fork_expose(threadpool_worker *front) {
  tp_worker *w = tp_worker_of(front);
  TP_ASSERT(w == tp_self(), "a fork belongs to the worker of this thread");
  tp_library_begin();
  unsigned n = tp_deque_expose(front, front->keep);
  if (n) {
    w->tied += n; /* until their sync */
    tp_bump(&w->count.exposed, n);
    tp_fence(); /* S3: split before the look at the counters */
    tp_posted_jobs(w, n, true);
  }
  tp_library_end();
}

void threadpool_fork_grow(threadpool_worker *front, threadpool_job *job) {
  tp_library_begin();
  bool room = tp_deque_make_room(front);
  tp_library_end();
  if (!room) { /* out of memory: the fork becomes a call */
    job->fn(front, job->arg);
    job->owner = NULL;                      /* it was never exposed */
    tp_store(&job->latch, TP_SET, relaxed); /* nobody else knows it */
    return;
  }
  tp_deque_push(front, job);
  tp_store(&front->want, front->bottom - tp_load(&front->top, relaxed) < front->enough, relaxed);
  if (tp_load(&front->split, relaxed) - tp_load(&front->top, relaxed) < front->keep)
    threadpool_fork_expose(front);
}

void threadpool_sync_slow(threadpool_worker *front, threadpool_job *job) {
  tp_worker *w = tp_worker_of(front);
  TP_ASSERT(w == tp_self(), "a sync belongs to the worker of this thread");
  tp_library_begin();
  unsigned tied =
      job->owner != NULL; /* who comes here with a job that was pushed has exposed it before */
  /* What lies above our job are jobs spawned in a scope since: they go first. */
  while (!tp_latch_is_set(&job->latch)) {
    int64_t at = front->bottom - 1;
    threadpool_job *top = tp_deque_pop(front);
    if (!top) {
      tp_join_wait(w, &job->latch); /* it was stolen */
      break;
    }
    if (top == job) {
      w->tied -= tied;
      tp_library_end();
      job->fn(front, job->arg);
      return;
    }
    tp_run_job(w, top, tp_segment_of(w, at), false);
  }
  w->tied -= tied;
  tp_guard_check(w); /* X6 */
  tp_library_end();
}

/* Steps 1 to 4 of a join wait. It has slept, or there was a reason not to. True: somebody claimed it to
 * help. */
static bool wait_asleep(tp_worker *w, tp_latch *done) {
  tp_sched *s = w->sched;
  tp_bitmap *waiters = &s->sleep.waiters;
  if (!tp_latch_sleepy(&w->join)) { /* step 1; a late SET of an earlier wait (S7) */
    tp_latch_reset(&w->join);
    return false;
  }
  if (!tp_latch_sleepy(done)) { /* it is done */
    tp_latch_reset(&w->join);
    return false;
  }
  bool helps =
      w->help_depth < HELP_MOST; /* else it must not be claimed: it could not pass the wake on */
  if (helps) tp_bitmap_set(waiters, w->index);
  tp_fence(); /* step 2: the bit before the look; pairs with the fence of whoever exposes (S3) */
  /* Directed work is ordered by the latch, which tp_post_to sets. */
  bool look = (helps && tp_visible_jobs(s)) || tp_load(&w->directed, seq_cst);
  bool slept = false;
  /* Step 3: the job's latch first. A completer that finds SLEEPING sets our latch, in whichever state. */
  if (!look && tp_latch_sleep(done) && tp_latch_sleep(&w->join)) {
    tp_bump(&w->count.waited, 1);
    tp_latch_block(&w->join, 0); /* step 4 */
    slept = true;
  }
  bool claimed = helps && !tp_bitmap_clear(waiters, w->index);
  tp_latch_reset(&w->join);
  uint32_t was = tp_load(done, relaxed);
  while (was != TP_SET && !tp_cas_weak(done, &was, TP_UNSET, relaxed)) {
  } /* the next round acquires */
  if (slept) tp_bump(&w->count.woken, 1);
  return claimed;
}

void tp_join_wait(tp_worker *w, tp_latch *done) {
  bool claimed = false;
  for (unsigned round = 0; !tp_latch_is_set(done); round++) {
    if (tp_unlikely(tp_load(&w->directed, relaxed))) tp_run_directed(w);
    if (w->help_depth < HELP_MOST) {
      tp_found f = {0};
      f.job = tp_pop_job(w, &f.segment); /* spawned by what we have helped with */
      bool stolen = !f.job && tp_find_job(w, &f);
      if (f.job) {
        if (claimed) tp_post_pass_on(w); /* S8: the wake was for one, but there may be more */
        claimed = false;
        w->help_depth++;
        tp_run_job(w, f.job, f.segment, stolen);
        w->help_depth--;
        tp_bump(&w->count.executed, 1);
        round = (unsigned)-1;
        continue;
      }
    }
    if (round < ROUNDS) {
      for (unsigned i = 0; i < round; i++) tp_pause();
      continue;
    }
    claimed = wait_asleep(w, done);
    round = (unsigned)-1;
  }
  if (claimed) tp_post_pass_on(w); /* S8: claimed to help, but leaving */
}

int threadpool_join(threadpool_worker *w, threadpool_fn a, void *a_arg, threadpool_fn b,
                    void *b_arg) {
  if (!w || w != (threadpool_worker *)tp_self()) return ERR_WRONG_THREAD;
  if (!a || !b) return ERR_INVALID_ARGUMENT;
  if (threadpool_enough(w)) {
    a(w, a_arg);
    b(w, b_arg);
    return 0;
  }
  threadpool_job job;
  threadpool_fork(w, &job, b, b_arg);
  a(w, a_arg);
  threadpool_sync(w, &job);
  return 0;
}
