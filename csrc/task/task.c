#include "task/task.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "sched/guard.h"
#include "sched/post.h"

/* One for each seat, whose thread is the only user, and one for each inlet, for whoever holds its lock. */
typedef struct store {
  TP_ALIGNED tp_slab_cache cache;
  _Atomic uint64_t spawned, completed; /* one writer; tp_tasks_drain adds them up */
} store;

/* What most tasks do not need. */
typedef struct cold {
  void (*end)(tp_task *t); /* if TP_HAS_END: called once before COMPLETE, may change the code */
  tp_task *
      parent; /* [runner] while it awaits a child that its own worker runs: who awaits it in the same way */
  tp_done done; /* K6 */
} cold;

struct tp_tasks {
  tp_sched *sched;
  tp_slab slab;
  unsigned made_in;        /* constant: tp_generation */
  store *seats;            /* one for each worker, and the main seat's */
  _Atomic bool closing;    /* nothing more from outside */
  _Atomic bool cancelling; /* nothing more at all */
  void (*told)(void *arg); /* constant: tp_tasks_on_told */
  void *told_arg;
  store inlets[TP_INLETS];
};

static void run(tp_worker *w, tp_work *work);

/* The child that the poll which runs on this thread has taken out of the LIFO slot, to be run next. Not in the
 * task, whose cold part a poll does not touch otherwise. */
static _Thread_local tp_task *taken __attribute__((tls_model("initial-exec")));

tp_tasks *tp_tasks_new(tp_sched *s) {
  tp_tasks *ts = tp_alloc(sizeof *ts);
  store *seats = tp_alloc((s->workers + 1) * sizeof *seats);
  if (!ts || !seats) {
    tp_free(ts);
    tp_free(seats);
    return NULL;
  }
  ts->sched = s;
  ts->seats = seats;
  ts->made_in = tp_load(&tp_generation, relaxed); /* a fork is between two calls of its thread */
  tp_slab_init(&ts->slab, sizeof(tp_task), sizeof(cold));
  return ts;
}

tp_sched *tp_tasks_sched(const tp_tasks *ts) {
  return ts->sched;
}

bool tp_tasks_cancelling(const tp_tasks *ts) {
  return tp_load(&ts->cancelling, relaxed); /* asked again and again */
}

void tp_tasks_free(tp_tasks *ts) {
  for (unsigned i = 0; i <= ts->sched->workers; i++) tp_slab_cache_free(&ts->seats[i].cache);
  for (int i = 0; i < TP_INLETS; i++) tp_slab_cache_free(&ts->inlets[i].cache);
  tp_slab_free(&ts->slab);
  tp_free(ts->seats);
  tp_free(ts);
}

/* --- records */

static cold *cold_of(tp_task *t) {
  return tp_slab_cold(&t->tasks->slab, &t->record);
}

/* The seat of this thread, if it is one of this pool. */
static tp_worker *seat_in(tp_tasks *ts) {
  tp_worker *w = tp_self();
  return w && w->sched == ts->sched ? w : NULL;
}

/* The store of this thread: *in is its inlet, locked, or NULL if it has a seat. */
static store *enter(tp_tasks *ts, tp_inlet **in) {
  tp_worker *w = seat_in(ts);
  *in = w ? NULL : tp_inlet_enter(ts->sched);
  return w ? &ts->seats[w->index] : &ts->inlets[(*in)->number];
}

static void leave(tp_inlet *in) {
  if (in) tp_lock_release(&in->lock);
}

static void give_record(tp_task *t) {
  tp_inlet *in;
  tp_tasks *ts = t->tasks;
  tp_library_begin();
  store *s = enter(ts, &in);
  tp_slab_give(&ts->slab, &s->cache, &t->record);
  leave(in);
  tp_library_end();
}

/* K8. Release: whoever adds it up sees what the task did. */
static void count_completed(tp_tasks *ts) {
  tp_inlet *in;
  store *s = enter(ts, &in);
  tp_store(&s->completed, tp_load(&s->completed, relaxed) + 1, release);
  leave(in);
}

/* --- queueing */

/* The task is SCHEDULED (K1), and alive until its end whatever happens to other references. */
static int submit(tp_task *t, bool last) {
  tp_worker *w = seat_in(t->tasks);
  uint64_t s = tp_load(&t->state, relaxed); /* for its constant bits */
  if (s & TP_BLOCKING) return tp_threads_run(&t->tasks->sched->threads, &t->work, TP_THREAD_QUEUE);
  if (!w || w->index == w->sched->workers || tp_priority_of(s) != TP_NORMAL)
    tp_post(t->tasks->sched, (tp_priority)tp_priority_of(s), &t->work);
  else if (last)
    tp_post_last(w, &t->work);
  else
    tp_post_next(w, &t->work);
  return 0;
}

/* A record that is filled in, with `state`; NULL: *error says why. *in as of enter(): still locked. */
static tp_task *make(tp_tasks *ts, const tp_spawn_spec *spec, uint64_t state, tp_inlet **in,
                     int *error) {
  *error = ERR_INVALID_ARGUMENT;
  if (!spec->poll || (unsigned)spec->priority >= TP_PRIORITIES) return NULL;
  store *s = enter(ts, in);
  /* `closing` was set before tp_tasks_drain took the inlet's lock. Tasks may still spawn: also such as run on a
   * thread of their own. */
  bool outside = *in && tp_my_threads != &ts->sched->threads;
  bool refused = tp_load(outside ? &ts->closing : &ts->cancelling, relaxed);
  tp_task *t = tp_unlikely(refused) ? NULL : (tp_task *)tp_slab_take(&ts->slab, &s->cache);
  if (tp_unlikely(!t)) {
    leave(*in);
    *error = refused ? ERR_SHUTDOWN : ERR_MALLOC_FAILED;
    return NULL;
  }
  tp_bump(&s->spawned, 1);
  t->work.run = run;
  t->tasks = ts;
  t->poll = spec->poll;
  t->arg = spec->arg;
  state |= (uint64_t)spec->priority << TP_PRIORITY_SHIFT;
  if (spec->blocking) state |= TP_BLOCKING;
  if (spec->end) {
    state |= TP_HAS_END;
    cold_of(t)->end = spec->end;
  }
  tp_store(&t->state, state, release); /* who finds it by its id sees a whole task */
  *error = 0;
  return t;
}

tp_task *tp_task_new(tp_tasks *ts, const tp_spawn_spec *spec, int *error) {
  tp_inlet *in;
  tp_task *t;
  int failed = 0;
  tp_library_begin();
  do t = make(ts, spec, TP_SCHEDULED | TP_REF_ONE, &in, error);
  while (tp_unlikely(!t) && *error == ERR_MALLOC_FAILED && tp_try_again(&failed));
  if (t) leave(in);
  tp_library_end();
  return t;
}

static int spawn(tp_tasks *ts, const tp_spawn_spec *spec, tp_task **handle) {
  tp_inlet *in;
  int error;
  tp_task *t = make(ts, spec, TP_SCHEDULED | (handle ? 2 : 1) * TP_REF_ONE, &in, &error);
  if (!t) return error;
  if (handle) *handle = t;
  if (in && !spec->blocking) { /* with the lock we have */
    tp_inlet_post(ts->sched, in, spec->priority, &t->work);
    return 0;
  }
  leave(in);
  error = submit(t, false);
  if (!error) return 0;
  /* No thread for a blocking task. Nobody is told; but a drain that cancels all may hold a reference. */
  if (handle) *handle = NULL;
  tp_state_abandon(&t->state);
  if (handle) tp_task_unref(t);
  tp_task_unref(t);
  count_completed(ts);
  return error;
}

int tp_spawn(tp_tasks *ts, const tp_spawn_spec *spec, tp_task **handle) {
  if (handle) *handle = NULL;
  tp_library_begin();
  int error = spawn(ts, spec, handle);
  tp_library_end();
  return error;
}

/* --- running */

static void end(tp_task *t) {
  tp_tasks *ts = t->tasks;
  if (tp_load(&t->state, relaxed) & TP_HAS_END) cold_of(t)->end(t); /* constant */
  switch (tp_state_end(&t->state)) {
  case TP_END_TELL:
    cold_of(t)->done.fn(cold_of(t)->done.arg); /* K6 */
    tp_task_unref(t);
    break;
  case TP_END_FREE: give_record(t); break;
  case TP_END_KEPT: break;
  }
  count_completed(ts);
}

static void end_cancelled(tp_task *t) {
  tp_task_fail(t, ERR_CANCELLED);
  end(t);
}

/* After a poll that did not end the task. */
static void queue_again(tp_task *t, tp_poll outcome) {
  if (outcome == TP_YIELD) {
    submit(t, true); /* K2: it stays RUNNING */
    return;
  }
  switch (tp_state_pause(&t->state)) {
  case TP_PAUSE_IDLE: break;
  case TP_PAUSE_AGAIN:
    submit(t, true);
    break; /* a blocking one: our own thread is free next (T2) */
  case TP_PAUSE_CANCELLED: end_cancelled(t); break;
  }
}

/* A task, and the children it finds in its worker's LIFO slot when it awaits them: child and parent take turns
 * here instead of waking each other. After TP_BUDGET children others have their turn. */
static void run(tp_worker *w, tp_work *work) {
  tp_task *t = (tp_task *)((char *)work - offsetof(tp_task, work));
  tp_task *parent = NULL; /* awaits t and is RUNNING (K2); its own parent awaits it, and so on */
  int children = 0;
  bool cancelled = tp_state_start(&t->state) == TP_START_CANCELLED;
  for (;;) {
    if (w) w->root = (const void *)t->poll;
    tp_poll outcome = cancelled ? TP_READY : t->poll(t, t->arg);
    tp_task *child = taken;
    taken = NULL;
    if (tp_unlikely(child && outcome != TP_PENDING)) { /* it goes on without it */
      submit(child, false);
      child = NULL;
    }
    if (child) {
      cold_of(t)->parent = parent;
      parent = t;
      t = child;
      children++;
      cancelled = tp_state_start(&t->state) == TP_START_CANCELLED;
      continue;
    }
    if (cancelled) {
      end_cancelled(t);
    } else if (outcome == TP_READY) {
      end(t);
    } else if (outcome == TP_YIELD && tp_load(&t->state, relaxed) & TP_BLOCKING) {
      cancelled = tp_task_cancelled(t); /* a thread of its own: there is nobody to give way to */
      continue;
    } else {
      queue_again(t, outcome);
    }
    if (!parent) return;
    w = seat_in(parent->tasks);
    if (tp_unlikely(!w)) { /* the child has given the seat away, or crashed: they go on elsewhere */
      for (tp_task *next; parent; parent = next) {
        next = cold_of(parent)->parent;
        submit(parent, true); /* K2 */
      }
      return;
    }
    t = parent;
    parent = cold_of(t)->parent;
    if (tp_unlikely(children >=
                    TP_BUDGET)) { /* its own parent will find that it is not over, and register */
      children = 0;
      submit(t, true);
      if (!parent) return;
      t = parent;
      parent = cold_of(t)->parent;
    }
    cancelled = tp_task_cancelled(t);
  }
}

/* --- from the poll function */

static void wake_awaiter(void *arg) {
  tp_task *t = arg;
  tp_task_wake(t);
  tp_task_unref(t);
}

static tp_poll await(tp_task *t, tp_task *child) {
  if (tp_task_over(child)) return TP_READY;
  tp_worker *w = seat_in(t->tasks);
  tp_work *work = &child->work;
  /* Still in our LIFO slot: take it out, and have the runner run it next. */
  if (w && !taken && !(tp_load(&t->state, relaxed) & TP_BLOCKING) &&
      tp_load(&w->lifo, relaxed) == work && tp_cas(&w->lifo, &work, NULL, acquire)) {
    taken = child;
    return TP_PENDING;
  }
  /* Polled again for another reason while we are registered already: K6 allows one registration. */
  switch (tp_state_claim(&child->state)) {
  case TP_CLAIM_TAKEN: return TP_PENDING;
  case TP_CLAIM_TOO_LATE: return TP_READY;
  case TP_CLAIMED: break;
  }
  cold_of(child)->done = (tp_done){wake_awaiter, tp_task_ref(t)};
  if (tp_state_join(&child->state)) return TP_PENDING;
  tp_task_unref(t);
  return TP_READY;
}

tp_poll tp_task_await(tp_task *t, tp_task *child) {
  tp_library_begin();
  tp_poll outcome = await(t, child);
  tp_library_end();
  return outcome;
}

/* --- from anywhere */

/* A blocking task that got no thread: a worker tries again, then ends it. */
static void run_stranded(tp_worker *w, tp_work *work) {
  (void)w;
  tp_task *t = (tp_task *)((char *)work - offsetof(tp_task, work));
  int failed = 0;
  work->run = run;
  while (tp_try_again(&failed))
    if (submit(t, false) == 0) return;
  bool cancelled = tp_state_start(&t->state) == TP_START_CANCELLED;
  tp_task_fail(t, cancelled ? ERR_CANCELLED : ERR_MALLOC_FAILED);
  end(t);
}

/* It is SCHEDULED by us and must be queued. What its end does is not for any thread: neither for a timer's, nor for one
 * that holds locks of its own. */
static void submit_somewhere(tp_task *t) {
  if (submit(t, false) == 0) return;
  t->work.run = run_stranded;
  tp_post(t->tasks->sched, (tp_priority)tp_priority_of(tp_load(&t->state, relaxed)), &t->work);
}

void tp_task_post(tp_task *t) {
  tp_library_begin();
  submit_somewhere(t);
  tp_library_end();
}

void tp_task_wake(tp_task *t) {
  tp_library_begin();
  if (tp_state_wake(&t->state) == TP_WAKE_SUBMIT) submit_somewhere(t);
  tp_library_end();
}

bool tp_task_cancel(tp_task *t) {
  tp_library_begin();
  tp_cancel_outcome outcome = tp_state_cancel(&t->state);
  if (outcome == TP_CANCEL_SUBMIT) submit_somewhere(t);
  if (outcome == TP_CANCEL_ASKED && t->tasks->told) t->tasks->told(t->tasks->told_arg);
  tp_library_end();
  return outcome != TP_CANCEL_TOO_LATE;
}

void tp_tasks_on_told(tp_tasks *ts, void (*told)(void *arg), void *arg) {
  ts->told_arg = arg;
  ts->told = told;
}

tp_task *tp_task_ref(tp_task *t) {
  tp_state_ref(&t->state);
  return t;
}

void tp_task_unref(tp_task *t) {
  if (tp_state_unref(&t->state)) give_record(t);
}

tp_task *tp_task_find(tp_tasks *ts, uint64_t id) {
  if (id < TP_SLAB_GENERATION || id >= TP_SLAB_MAX_ID) return NULL;
  tp_task *t = (tp_task *)tp_slab_at(&ts->slab, id);
  if (!t || tp_load(&t->record.id, relaxed) != id || !tp_state_try_ref(&t->state)) return NULL;
  if (tp_task_id(t) == id)
    return t; /* it may have been another one by the time we had the reference */
  tp_task_unref(t);
  return NULL;
}

static void open_latch(void *arg) {
  tp_latch_open(arg);
}

static int wait_for(tp_task *t, uint64_t deadline_ns) {
  if (tp_task_over(t)) return 0;
  if (tp_load(&t->state, relaxed) & TP_JOIN_CLAIMED)
    return ERR_BUSY; /* before the seat is given away */
  int error = tp_self() ? tp_worker_leave() : 0;
  if (error) return error;
  switch (tp_state_claim(&t->state)) {
  case TP_CLAIM_TAKEN: return ERR_BUSY;
  case TP_CLAIM_TOO_LATE: return 0;
  case TP_CLAIMED: break;
  }
  tp_latch over = TP_UNSET;
  cold_of(t)->done = (tp_done){open_latch, (void *)&over};
  if (!tp_state_join(&t->state)) return 0;
  if (tp_latch_sleepy(&over) && tp_latch_sleep(&over)) tp_latch_block(&over, deadline_ns);
  if (tp_latch_is_set(&over)) return 0;
  if (tp_state_unjoin(&t->state)) return ERR_TIMEOUT;
  while (!tp_latch_is_set(&over)) tp_pause(); /* it is just being told */
  return 0;
}

int tp_task_wait(tp_task *t, uint64_t deadline_ns) {
  tp_library_begin();
  int error = wait_for(t, deadline_ns);
  tp_library_end();
  return error;
}

/* --- the end */

/* K8: nothing is left (0) if the sum of completed, read first, equals the sum of spawned, read afterwards. Both
 * only grow, and completed never exceeds spawned. */
static uint64_t left(tp_tasks *ts) {
  uint64_t completed = 0, spawned = 0;
  for (unsigned i = 0; i <= ts->sched->workers; i++)
    completed += tp_load(&ts->seats[i].completed, acquire);
  for (int i = 0; i < TP_INLETS; i++) completed += tp_load(&ts->inlets[i].completed, acquire);
  for (unsigned i = 0; i <= ts->sched->workers; i++)
    spawned += tp_load(&ts->seats[i].spawned, acquire);
  for (int i = 0; i < TP_INLETS; i++) spawned += tp_load(&ts->inlets[i].spawned, acquire);
  return spawned - completed;
}

static void cancel_all(tp_tasks *ts) {
  uint32_t used = tp_slab_used(&ts->slab);
  for (uint32_t i = 0; i < used; i++) {
    tp_task *t = (tp_task *)tp_slab_at(&ts->slab, i);
    if (!tp_state_try_ref(&t->state)) continue;
    tp_task_cancel(t);
    tp_task_unref(t);
  }
}

void tp_tasks_drain(tp_tasks *ts, uint64_t deadline_ns) {
  tp_store(&ts->closing, true, relaxed);
  tp_inlets_quiesce(ts->sched); /* after this no spawn from outside is under way */
  const struct timespec moment = {0, 200000};
  while (left(ts)) {
    if (tp_now_ns() >= deadline_ns || tp_load(&tp_exiting, relaxed)) {
      tp_store(&ts->cancelling, true, relaxed);
      cancel_all(ts); /* again and again: a task may just have been spawning another */
    }
    nanosleep(&moment, NULL);
  }
}

uint64_t tp_tasks_cancel(tp_tasks *ts) {
  tp_store(&ts->closing, true, relaxed);
  tp_store(&ts->cancelling, true, relaxed);
  cancel_all(ts);
  return left(ts);
}

bool tp_tasks_forked(const tp_tasks *ts) {
  return tp_forked(ts->made_in);
}
