#include "sched/guard.h"

#include <signal.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "sched/fork.h"
#include "sched/post.h"
#include "sched/scope.h"

enum { ROUNDS = 32 };

_Thread_local tp_frame *tp_guard __attribute__((tls_model("initial-exec")));

/* --- segments */

tp_segment *tp_segment_at(tp_worker *w, uint32_t i) {
  if (tp_likely(i < TP_SEGMENTS_FIRST)) return &w->segments.first[i];
  i -= TP_SEGMENTS_FIRST;
  /* Relaxed: it was there before the depth that the caller has acquired. */
  return &tp_load(&w->segments.more[i / TP_SEGMENTS_MORE], relaxed)[i % TP_SEGMENTS_MORE];
}

static void init_segments(tp_worker *w, tp_segment *s, unsigned n) {
  for (unsigned i = 0; i < n; i++) s[i].seat = w;
}

void tp_segments_init(tp_worker *w) {
  init_segments(w, w->segments.first, TP_SEGMENTS_FIRST);
}

void tp_segments_free(tp_worker *w) {
  for (int i = 0; i < TP_SEGMENT_CHUNKS; i++) tp_free(tp_load(&w->segments.more[i], relaxed));
}

static inline bool have_room(tp_worker *w, uint32_t i) {
  if (tp_likely(i < TP_SEGMENTS_FIRST)) return true;
  uint32_t chunk = (i - TP_SEGMENTS_FIRST) / TP_SEGMENTS_MORE;
  if (chunk >= TP_SEGMENT_CHUNKS) return false;
  if (tp_load(&w->segments.more[chunk], relaxed)) return true; /* our own */
  tp_segment *s = tp_alloc(TP_SEGMENTS_MORE * sizeof *s);
  if (!s) return false;
  init_segments(w, s, TP_SEGMENTS_MORE);
  tp_store(&w->segments.more[chunk], s, relaxed); /* published with `depth` */
  return true;
}

static inline tp_segment *push(tp_worker *w, bool guarded, tp_segment *parent) {
  uint32_t depth = tp_load(&w->segments.depth, relaxed); /* our own */
  if (!have_room(w, depth)) return NULL;
  tp_segment *s = tp_segment_at(w, depth);
  /* Relaxed: published with `depth`, and again with the jobs forked in it. Not `out`: who has just finished
   * something of an earlier segment here may still have to count it down. */
  tp_store(&s->from, w->front.bottom, relaxed);
  tp_store(&s->guarded, guarded, relaxed);
  tp_store(&s->crashed, false, relaxed);
  s->parent = parent;
  tp_store(&w->segments.depth, depth + 1, release); /* pairs with the acquire in tp_segment_of */
  return s;
}

static void pop(tp_worker *w) {
  uint32_t depth = tp_load(&w->segments.depth, relaxed);
  TP_ASSERT(depth > 0, "X2");
  tp_store(&w->segments.depth, depth - 1, release);
}

/* X2: the topmost one that begins at or below it. Those above may come and go meanwhile, but each of them begins
 * above `at` as long as job `at` is there. */
tp_segment *tp_segment_find(tp_worker *w, uint32_t depth, int64_t at) {
  for (uint32_t i = depth; i-- > 0;) {
    tp_segment *s = tp_segment_at(w, i);
    if (tp_load(&s->from, relaxed) <= at) return tp_load(&s->guarded, relaxed) ? s : NULL;
  }
  return NULL;
}

void tp_segment_more(tp_segment *s) {
  tp_add(&s->out, 1, seq_cst); /* X5: before the CAS that takes the job, or the push of the spawn */
}

/* Its job's memory is not touched any more; the segment's is the seat's. */
void tp_segment_less(tp_segment *s) {
  /* Release what the job did, and that it is over. Seq-cst: store, then load; pairs with wait_for_out. */
  if (tp_sub(&s->out, 1, seq_cst) == 1 && tp_load(&s->waiting, seq_cst)) tp_wake_join(s->seat);
}

void tp_segment_crash(tp_segment *s, const tp_crash *crash) {
  bool first = false;
  /* Whoever needs `crash` waits until all who are counted are through, and so until it is written. */
  if (atomic_compare_exchange_strong(&s->crashed, &first, true)) s->crash = *crash;
}

static bool is_ancestor(const tp_segment *s, const tp_segment *of) {
  for (; of; of = of->parent)
    if (of == s) return true;
  return false;
}

/* --- frames */

/* [W, or a thread of the pool without a seat: w NULL] Enter a guarded function, or a job of segment `parent`; then
 * sigsetjmp(f->env, 0), and only then tp_guard = f. False: the seat has no room for another segment. */
static inline bool enter(tp_frame *f, tp_worker *w, tp_segment *parent) {
  f->outer = tp_guard;
  f->seat = w;
  f->segment = NULL;
  f->running = NULL;
  f->critical = tp_critical;
  f->alone = false;
  if (!w) return true;
  f->bottom = w->front.bottom;
  f->root = w->root;
  f->tied = w->tied;
  f->help_depth = w->help_depth;
  /* Relaxed: if it was stolen by somebody, who forked it is still there, and tied. */
  f->alone = !w->tied && !w->help_depth && f->bottom == tp_load(&w->front.top, relaxed) &&
             w->index < w->sched->workers;
  f->segment = push(w, true, parent);
  return f->segment != NULL;
}

/* [the same] It returned. If one of its jobs crashed, and nobody has waited for that, it crashes here. */
static inline void leave(tp_frame *f) {
  if (f->seat && tp_self() == f->seat) { /* else it has given the seat away */
    if (tp_unlikely(tp_segment_crashed(f->segment))) {
      tp_crash none = {0}; /* that of the segment stands */
      tp_guard_unwind(&none);
    }
    pop(f->seat);
  }
  tp_guard = f->outer;
  tp_critical_resume(f->critical);
}

bool tp_guard_may_unwind(void) {
  return tp_guard && tp_critical == 0;
}

/* X7: the deque as it was at the frame's entry, but for spawns of scopes that go on. */
static void discard_jobs(tp_frame *f) {
  tp_worker *w = f->seat;
  threadpool_job *kept = NULL;
  while (w->front.bottom > f->bottom) {
    threadpool_job *job = tp_deque_pop(&w->front);
    if (!job) break; /* the rest was stolen */
    if (!job->owner && !tp_spawn_discard(w, job)) tp_spawn_keep(job, &kept);
  }
  tp_spawn_again(w, kept);
}

/* X5. As a join waiter waits, but without running jobs: this stack may be as good as used up. What is directed to
 * this seat is run: one of those we wait for may wait for that. */
static void wait_for_out(tp_worker *w, tp_segment *s) {
  for (unsigned round = 0; tp_load(&s->out, acquire); round++) {
    if (tp_load(&w->directed, relaxed)) tp_run_directed(w);
    if (round < ROUNDS) {
      for (unsigned i = 0; i < round; i++) tp_pause();
      continue;
    }
    if (tp_latch_sleepy(&w->join)) {
      tp_store(&s->waiting, true, seq_cst); /* then look; pairs with tp_segment_less */
      if (tp_load(&s->out, seq_cst) && !tp_load(&w->directed, seq_cst) && tp_latch_sleep(&w->join))
        tp_latch_block(&w->join, 0);
    }
    tp_latch_reset(&w->join); /* S7 */
  }
  tp_store(&s->waiting, false, relaxed); /* nobody is left who would wake us */
}

static void put_in_order(tp_frame *f, const tp_crash *crash) {
  tp_worker *w = f->seat;
  f->crash = *crash;
  if (!w || tp_self() != w)
    return; /* without a seat nothing can have been forked (tp_worker_leave) */
  tp_segment *s = f->segment;
  tp_segment_crash(s, crash); /* first: who has not yet begun need not */
  for (tp_running *r = f->running, *next; r; r = next) {
    next = r->next;
    tp_spawn_crashed(r->scope, crash);
  }
  discard_jobs(f);
  tp_fence(); /* X5: a thief whose move of top the pop has seen had counted before; pairs with steal_job */
  wait_for_out(w, s);
  f->crash = s->crash;
  w->root = f->root;
  w->tied = f->tied;
  w->help_depth = f->help_depth;
  tp_store(&w->front.want, 1, relaxed); /* D6 */
  TP_ASSERT(tp_segment_at(w, tp_load(&w->segments.depth, relaxed) - 1) == s, "X2");
  pop(w);
}

void tp_guard_unwind(const tp_crash *crash) {
  tp_frame *f = tp_guard;
  tp_guard = NULL; /* a fault from here on is our own */
  put_in_order(f, crash);
  tp_guard = f->outer;
  tp_critical_resume(f->critical);
  siglongjmp(f->env, 1);
}

/* [W, or without a seat] After that: the thread is to end (X8). */
static void retire(tp_frame *f) {
  tp_worker *w = f->seat;
  if (!w || tp_self() != w) {
    if (!tp_self()) tp_threads_retire();
    return;
  }
  if (w->index == w->sched->workers) return; /* the caller's own thread */
  w->doomed = true;
  if (f->alone) tp_worker_retire(w);
}

bool tp_guard_run(void (*fn)(void *arg), void *arg, tp_crash *crash) {
  tp_worker *w = tp_self();
  tp_frame f;
  /* X1; and no room, which is not worth failing for. */
  bool ours = tp_my_threads && !(w && w->index == w->sched->workers);
  if (tp_unlikely(!ours || !enter(&f, w, NULL))) {
    fn(arg);
    return true;
  }
  if (tp_likely(sigsetjmp(f.env, 0) == 0)) {
    tp_critical_pause();
    tp_guard = &f;
    fn(arg);
    if (tp_unlikely(!tp_my_threads)) tp_threads_came_back(); /* P4 */
    leave(&f);
    return true;
  }
  if (crash) *crash = f.crash;
  retire(&f);
  return false;
}

void tp_guard_check_slow(tp_worker *w) {
  tp_segment *s = tp_segment_at(w, tp_load(&w->segments.depth, relaxed) - 1);
  if (tp_likely(!tp_segment_crashed(s))) return;
  if (tp_guard && tp_guard->segment == s) {
    tp_crash crash = {0}; /* that of the segment stands */
    tp_guard_unwind(&crash);
  }
  /* There was no room for a segment of its own: who waits here is not guarded, and cannot go on either. */
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
  _exit(128 + SIGSEGV);
}

/* --- jobs */

tp_barrier tp_barrier_begin(tp_worker *w) {
  tp_barrier b = {tp_guard, false};
  uint32_t depth = tp_load(&w->segments.depth, relaxed); /* our own, as is `guarded` */
  if (depth && tp_load(&tp_segment_at(w, depth - 1)->guarded, relaxed))
    b.pushed = push(w, false, NULL) != NULL;
  tp_guard = NULL;
  return b;
}

void tp_barrier_end(tp_worker *w, tp_barrier b) {
  if (b.pushed) pop(w);
  tp_guard = b.guard;
}

static void run(tp_worker *w, threadpool_job *job) {
  unsigned depth = tp_critical_pause();
  w->tied++;
  job->fn(&w->front, job->arg);
  w->tied--;
  tp_critical_resume(depth);
}

/* The main seat's thread is not ours, and may have no stack for signals. */
static bool lend_stack(tp_worker *w, stack_t *before) {
  return w->index == w->sched->workers && !tp_my_threads &&
         tp_signal_stack_lend(&w->signal_stack, before);
}

/* True: it crashed, and the thread can leave the seat at once. */
static bool run_in_frame(tp_worker *w, threadpool_job *job, tp_segment *s) {
  const bool spawned = !job->owner; /* it is gone afterwards */
  tp_frame f;
  stack_t before;
  if (!enter(&f, w, s)) {
    tp_barrier b = tp_barrier_begin(w); /* no room: not guarded */
    run(w, job);
    tp_barrier_end(w, b);
    return false;
  }
  volatile bool lent = lend_stack(w, &before);
  if (sigsetjmp(f.env, 0) == 0) {
    tp_guard = &f;
    run(w, job);
    leave(&f);
    if (lent) tp_signal_stack_return(&before);
    return false;
  }
  if (lent) tp_signal_stack_return(&before);
  /* X6: before its owner is told. A spawn's scope was told before the stack was left. */
  if (!spawned) tp_segment_crash(s, &f.crash);
  w->doomed = w->index < w->sched->workers;
  return f.alone;
}

void tp_guard_job(tp_worker *w, threadpool_job *job, tp_segment *s, bool counted) {
  tp_worker *owner = tp_worker_of(job->owner);
  bool retire = false;
  if (!s) {
    tp_barrier b = tp_barrier_begin(w);
    run(w, job);
    tp_barrier_end(w, b);
  } else if (owner && tp_segment_crashed(s)) {
    /* nobody will look at what it does */
  } else if (!counted && tp_guard && is_ancestor(s, tp_guard->segment)) {
    run(w, job); /* what crashes here takes along only what is lost anyway */
  } else {
    retire = run_in_frame(w, job, s);
  }
  if (owner) tp_job_done(owner, &job->latch);
  if (s && counted) tp_segment_less(s);
  if (retire) tp_worker_retire(w);
}
