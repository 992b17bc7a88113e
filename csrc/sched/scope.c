/* scope.c - scopes, calls from outside, broadcast: fork-join work that is not a strict fork and sync. */
#include "sched/scope.h"

#include "base/alloc.h"
#include "base/error.h"
#include "sched/fork.h"
#include "sched/guard.h"
#include "sched/post.h"

/* --- scopes. `pending` counts the spawns that have not ended, and one for the scope itself; whoever
 * brings it to 0 sets the latch, and the home waits for the latch, not the count: so the scope's memory is
 * there until the last user is done with it. */

typedef struct tp_spawned tp_spawned;
struct tp_spawned {
  threadpool_job job; /* owner NULL: nobody syncs it */
  threadpool_scope *scope;
  threadpool_fn fn;
  void *arg;
  tp_spawned *next; /* among the spare ones */
};

/* Each seat keeps some for the next spawns. Whoever runs a spawn gets its record. */
enum { SPARES_MOST = 256 };

static tp_spawned *take_spawned(tp_worker *w) {
  tp_spawned *sp = w->spare;
  if (!sp) return tp_alloc(sizeof *sp);
  w->spare = sp->next;
  w->spares--;
  return sp;
}

static void give_spawned(tp_worker *w, tp_spawned *sp) {
  if (w->spares >= SPARES_MOST) {
    tp_free(sp);
    return;
  }
  sp->next = w->spare;
  w->spare = sp;
  w->spares++;
}

void tp_spawned_free(tp_worker *w) {
  for (tp_spawned *next; w->spare; w->spare = next) {
    next = w->spare->next;
    tp_free(w->spare);
  }
}

static _Atomic int64_t *pending_of(threadpool_scope *scope) {
  return (_Atomic int64_t *)&scope->pending;
}

static tp_latch *latch_of(threadpool_scope *scope) {
  return (tp_latch *)&scope->latch;
}

static void one_less(threadpool_scope *scope) {
  tp_worker *home = tp_worker_of(scope->home);
  /* Release what the spawn did to whoever brings it to 0, acquire it there. */
  if (tp_sub(pending_of(scope), 1, acq_rel) == 1) tp_job_done(home, latch_of(scope));
}

/* It lives in the home's seat as long as the scope does. */
static tp_segment *segment_of(const threadpool_scope *scope) {
  return tp_likely(!scope->guard)
             ? NULL
             : tp_segment_at(tp_worker_of(scope->home), scope->guard - 1); /* constant */
}

static void end_spawned(threadpool_scope *scope) {
  tp_segment *s = segment_of(scope);
  one_less(scope); /* its memory may be gone then */
  if (tp_unlikely(s != NULL)) tp_segment_less(s);
}

static void run_spawned(threadpool_worker *w, void *arg) {
  tp_critical_begin();
  tp_spawned *sp = arg;
  threadpool_scope *scope = sp->scope;
  threadpool_fn fn = sp->fn;
  void *fn_arg = sp->arg;
  give_spawned(tp_worker_of(w), sp);
  tp_frame *f = tp_guard;
  tp_segment *s = segment_of(scope);
  if (tp_likely(!s || !tp_segment_crashed(s))) {
    tp_running running = {f ? f->running : NULL, scope};
    if (f) f->running = &running;
    tp_critical_end();
    fn(w, fn_arg);
    tp_critical_begin();
    if (f) f->running = running.next;
  }
  end_spawned(scope);
  tp_critical_end();
}

tp_segment *tp_spawn_segment(threadpool_job *job) {
  return segment_of(((tp_spawned *)job)->scope);
}

bool tp_spawn_discard(tp_worker *w, threadpool_job *job) {
  tp_spawned *sp = (tp_spawned *)job;
  threadpool_scope *scope = sp->scope;
  tp_segment *s = segment_of(scope);
  if (!s || !tp_segment_crashed(s)) return false;
  sp->next = w->spare; /* beyond SPARES_MOST if need be: we are in a signal handler */
  w->spare = sp;
  w->spares++;
  end_spawned(scope);
  return true;
}

void tp_spawn_keep(threadpool_job *job, threadpool_job **list) {
  ((tp_spawned *)job)->next = (tp_spawned *)*list;
  *list = job;
}

void tp_spawn_again(tp_worker *w, threadpool_job *list) {
  if (!list) return;
  for (threadpool_job *next; list; list = next) {
    next = (threadpool_job *)((tp_spawned *)list)->next;
    /* It comes from there, so there is room; only the limit may be an old one. */
    if (w->front.bottom == w->front.limit) tp_deque_make_room(&w->front);
    tp_deque_push(&w->front, list);
  }
  unsigned n = tp_deque_expose(&w->front, INT64_MAX);
  tp_fence(); /* S3 */
  tp_posted_jobs(w, n, false);
}

void tp_spawn_crashed(threadpool_scope *scope, const tp_crash *crash) {
  tp_segment_crash(segment_of(scope), crash); /* X6: before its home can go on */
  end_spawned(scope);
}

int threadpool_scope_begin(threadpool_worker *w, threadpool_scope *scope) {
  if (!scope) return ERR_INVALID_ARGUMENT;
  scope->home = NULL;
  if (!w || tp_worker_of(w) != tp_self()) return ERR_WRONG_THREAD;
  scope->home = w;
  scope->guard = 0;
  if (tp_unlikely(tp_guard != NULL)) /* its segment is the topmost */
    scope->guard = tp_load(&tp_worker_of(w)->segments.depth, relaxed); /* our own */
  tp_worker_of(w)->tied++;
  tp_store(pending_of(scope), 1, relaxed); /* nobody else knows it yet */
  tp_store(latch_of(scope), TP_UNSET, relaxed);
  return 0;
}

int threadpool_spawn(threadpool_worker *w, threadpool_scope *scope, threadpool_fn fn, void *arg) {
  if (!scope || !scope->home || !fn) return ERR_INVALID_ARGUMENT;
  tp_worker *me = tp_worker_of(w);
  if (!w || me != tp_self() || me->sched != tp_worker_of(scope->home)->sched)
    return ERR_WRONG_THREAD;
  tp_library_begin();
  tp_spawned *sp = take_spawned(me);
  if (!sp || (w->bottom == w->limit && !tp_deque_make_room(w))) {
    tp_free(sp);
    tp_library_end();
    fn(w, arg);
    return 0;
  }
  *sp = (tp_spawned){.job = {.fn = run_spawned, .arg = sp}, .scope = scope, .fn = fn, .arg = arg};
  tp_add(pending_of(scope), 1, relaxed); /* the caller holds one, so it cannot reach 0 meanwhile */
  tp_segment *s = segment_of(scope);
  if (tp_unlikely(s != NULL)) tp_segment_more(s); /* X5 */
  tp_deque_push(w, &sp->job);
  unsigned n = tp_deque_expose(w, INT64_MAX);
  me->tied += n - 1; /* older forks; of the spawn itself only the scope knows */
  tp_bump(&me->count.exposed, n);
  tp_fence(); /* S3 */
  tp_posted_jobs(me, n, false);
  tp_library_end();
  return 0;
}

int threadpool_scope_end(threadpool_worker *w, threadpool_scope *scope) {
  if (!scope) return ERR_INVALID_ARGUMENT;
  if (!w || tp_worker_of(w) != tp_self() || scope->home != w) return ERR_WRONG_THREAD;
  tp_library_begin();
  one_less(scope);
  tp_worker *me = tp_worker_of(w);
  while (!tp_latch_is_set(latch_of(scope))) {
    tp_segment *s;
    threadpool_job *job = tp_pop_job(me, &s);
    if (job)
      tp_run_job(me, job, s, false);
    else
      tp_join_wait(me, latch_of(scope));
  }
  me->tied--;
  tp_guard_check(me); /* X6 */
  tp_library_end();
  return 0;
}

/* --- calls from outside */

typedef struct outside_call {
  tp_work work;
  threadpool_fn fn;
  void *arg;
  tp_latch done;
} outside_call;

static void run_outside_call(tp_worker *w, tp_work *work) {
  outside_call *call = (outside_call *)work;
  w->root = (const void *)call->fn;
  w->tied++;
  call->fn(&w->front, call->arg);
  w->tied--;
  tp_latch_open(&call->done); /* the call's memory is gone then */
}

void tp_wait_outside(tp_latch *done) {
  if (tp_latch_sleepy(done) && tp_latch_sleep(done)) tp_latch_block(done, 0);
}

static void call_in_main_seat(tp_sched *s, threadpool_fn fn, void *arg) {
  tp_worker *w = &s->seats[s->workers];
  tp_frame *guard = tp_guard; /* X1: here it is not guarded, whatever the thread was in before */
  tp_guard = NULL;
  w->outer = tp_self();
  tp_set_self(w);
  w->root = (const void *)fn;
  fn(&w->front, arg);
  if (tp_unlikely(w->deferral.began_ns)) tp_alarm_root_over(w);
  tp_set_self(w->outer);
  tp_store(&s->main_taken, false, release); /* pairs with the swap that takes it next */
  tp_guard = guard;
}

void tp_call(tp_sched *s, threadpool_fn fn, void *arg) {
  tp_worker *me = tp_self();
  if (me && me->sched == s) {
    me->tied++;
    fn(&me->front, arg);
    me->tied--;
    return;
  }
  /* Acquire what the last one in this seat has left in it. */
  if (!tp_load(&s->main_taken, relaxed) && !tp_swap(&s->main_taken, true, acquire)) {
    call_in_main_seat(s, fn, arg);
    return;
  }
  outside_call call = {.work = {.run = run_outside_call}, .fn = fn, .arg = arg};
  tp_library_begin(); /* the call is on this stack */
  tp_post(s, TP_NORMAL, &call.work);
  tp_wait_outside(&call.done);
  tp_library_end();
}

/* --- broadcast */

typedef struct broadcast broadcast;
typedef struct broadcast_part {
  tp_work work;
  broadcast *all;
} broadcast_part;

struct broadcast {
  threadpool_fn fn;
  void *arg;
  tp_worker *waiter; /* NULL: a thread without a seat */
  _Atomic unsigned left;
  tp_latch done;
  broadcast_part part[];
};

static void broadcast_one_less(broadcast *b) {
  tp_worker *waiter = b->waiter;
  if (tp_sub(&b->left, 1, acq_rel) != 1) return; /* as in one_less() */
  if (waiter)
    tp_job_done(waiter, &b->done);
  else
    tp_latch_open(&b->done);
}

static void run_broadcast(tp_worker *w, tp_work *work) {
  broadcast *b = ((broadcast_part *)work)->all;
  b->fn(&w->front, b->arg);
  broadcast_one_less(b);
}

int tp_broadcast(tp_sched *s, threadpool_fn fn, void *arg) {
  tp_worker *me = tp_self();
  if (me && me->sched != s) me = NULL;
  broadcast *b = tp_alloc(sizeof *b + s->workers * sizeof b->part[0]);
  if (!b) return ERR_MALLOC_FAILED;
  tp_library_begin(); /* with our own part: a broadcast is nowhere guarded (X1) */
  *b = (broadcast){.fn = fn, .arg = arg, .waiter = me, .left = s->workers};
  for (unsigned i = 0; i < s->workers; i++) {
    b->part[i] = (broadcast_part){.work = {.run = run_broadcast}, .all = b};
    if (&s->seats[i] != me) tp_post_to(&s->seats[i], &b->part[i].work);
  }
  if (me && me->index < s->workers) {
    me->tied++;
    fn(&me->front, arg);
    me->tied--;
    broadcast_one_less(b);
  }
  if (me)
    tp_join_wait(me, &b->done);
  else
    tp_wait_outside(&b->done);
  tp_free(b);
  tp_library_end();
  return 0;
}
