/* deliver.c - what becomes of a call's entries: by id, by callback, by queue. Rules V1 to V4: call.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "pool/calls.h"
#include "pool/completions.h"
#include "sched/guard.h"

void tp_call_release(tp_entry *e) {
  void (*release)(void *, void *) = e->release;
  void *data = e->r.data;
  e->release = NULL; /* first: it is the program's code, and may crash */
  e->r.data = NULL;
  e->r.data_size = 0;
  if (release) release(data, e->release_arg);
}

void tp_call_drop_partials(task_t *call) {
  for (tp_entry *e = call->first, *next; e; e = next) {
    next = e->next;
    tp_put(e);
  }
  call->first = call->last = NULL;
  call->waiting = 0;
}

/* Lock held. */
static void tell_waiter(task_t *call) {
  if (call->waiter) tp_latch_open(call->waiter);
}

void tp_call_tell_emitter(task_t *call) {
  if (call->room) tp_latch_open(call->room);
  call->room = NULL;
  if (call->emit_waits && call->task) tp_task_wake(call->task);
  call->emit_waits = false;
}

void tp_call_tell_waiting(task_t *call) {
  if (call->waits) tp_latch_open(call->waits);
}

tp_entry *tp_call_hand_over(task_t *call) {
  if (tp_load(&call->stage, relaxed) != TP_CALL_ORPHAN) /* N3; the lock is held */
    tp_store(&call->stage, TP_CALL_FETCHED, relaxed);
  tp_sub(&call->calls->pending, 1, relaxed); /* a limit: nothing is ordered by it */
  return &call->result;
}

void tp_call_deliver(task_t *call) {
  tp_entry *e = &call->result;
  tp_lock_acquire(&call->lock);
  call->task = NULL;
  tp_store(&call->stage, TP_CALL_DONE, relaxed); /* the lock is held */
  /* Partial entries among the completions still point to the record: then the final one follows them. */
  bool discard = call->detached && !(call->deliver == THREADPOOL_BY_QUEUE && call->waiting > 0);
  if (discard || call->deliver == THREADPOOL_BY_CALLBACK) tp_call_hand_over(call);
  int deliver = call->deliver;
  threadpool_queue *queue = call->queue;
  if (deliver == THREADPOOL_BY_ID) tell_waiter(call);
  tp_lock_release(&call->lock); /* a fetched one may be gone from here on */
  bool counted = deliver == THREADPOOL_BY_QUEUE && queue->counted;
  if (discard)
    threadpool_result_free(&e->r);
  else if (deliver == THREADPOOL_BY_CALLBACK)
    call->callback(&e->r, call->user_data);
  else if (deliver == THREADPOOL_BY_QUEUE)
    tp_completions_push(queue, e);
  if (counted) tp_sub(&queue->expected, 1, release); /* N4: the last that we do to it */
}

/* --- fetching */

task_t *tp_call_find(tp_calls *cs, uint64_t id) {
  if (id < TP_SLAB_GENERATION || id >= TP_SLAB_MAX_ID) return NULL;
  task_t *call = (task_t *)tp_slab_at(&cs->slab, id);
  if (!call || tp_load(&call->record.id, relaxed) != id) return NULL; /* confirmed under the lock */
  tp_lock_acquire(&call->lock);
  tp_stage stage = tp_load(&call->stage, acquire); /* V1: then the id; pairs with accept */
  if (stage >= TP_CALL_SENT && stage <= TP_CALL_DONE && tp_load(&call->record.id, relaxed) == id)
    return call;
  tp_lock_release(&call->lock);
  return NULL;
}

/* An entry of no call. */
result_t *tp_call_error(uint64_t id, int code, const char *message) {
  static tp_entry no_memory = {
      .r = {.status = ERR_MALLOC_FAILED, .error_msg = "out of memory", .flags = RESULT_FINAL},
      .final = true}; /* never freed: it has no call */
  tp_entry *e = tp_get(sizeof *e);
  if (!e) return &no_memory.r;
  *e = (tp_entry){0};
  e->r.task_id = id;
  e->r.status = code;
  e->r.flags = RESULT_FINAL;
  snprintf(e->r.error_msg, sizeof e->r.error_msg, "%s", message);
  return &e->r;
}

/* Lock held. */
static tp_entry *take_partial(task_t *call) {
  tp_entry *e = call->first;
  if (!e) return NULL;
  call->first = e->next;
  if (!call->first) call->last = NULL;
  call->waiting--;
  e->call = NULL;
  tp_call_tell_emitter(call);
  return e;
}

/* Lock held. */
static tp_entry *take_entry(task_t *call) {
  tp_entry *e = take_partial(call);
  if (!e && tp_load(&call->stage, relaxed) == TP_CALL_DONE) {
    e = tp_call_hand_over(call);
    tell_waiter(call); /* it is not going to get one */
  }
  return e;
}

static result_t *unknown(uint64_t id) {
  return tp_call_error(id, ERR_INVALID_ARGUMENT,
                       "no such task: the id is unknown, or its result was already fetched");
}

/* V6, for a handler that waits for another call. How long it may block (UINT64_MAX: without limit); 0: it is to end. */
enum { NAP_NS = 20 * TP_NS_PER_MS };
static uint64_t patience(task_t *own, uint64_t deadline_ns) {
  if (tp_call_cancelled(own) || tp_tasks_cancelling(own->calls->tasks)) return 0;
  uint64_t now_ns = tp_now_ns(), until_ns = UINT64_MAX;
  if (own->limited) {
    until_ns = own->begin_ns + own->timeout_ms * TP_NS_PER_MS + TP_NS_PER_MS; /* then it was told */
    if (until_ns < now_ns) until_ns = now_ns + NAP_NS;
  }
  if (tp_load(&own->calls->closing, relaxed) && now_ns + NAP_NS < until_ns) /* see tp_calls_close */
    until_ns = now_ns + NAP_NS;
  return until_ns < deadline_ns ? until_ns : deadline_ns;
}

static void set_waits(task_t *own, tp_latch *latch) {
  if (!own) return;
  tp_lock_acquire(&own->lock);
  // cppcheck-suppress autoVariables ; taken back before the wait returns
  own->waits = latch;
  tp_lock_release(&own->lock);
}

result_t *tp_call_fetch(tp_calls *cs, uint64_t id, uint64_t deadline_ns) {
  task_t *call = tp_call_find(cs, id);
  if (!call || call->deliver != THREADPOOL_BY_ID) {
    if (call) tp_lock_release(&call->lock);
    return unknown(id);
  }
  tp_entry *e = take_entry(call);
  if (e || deadline_ns == 0) {
    tp_lock_release(&call->lock);
    return e ? &e->r : NULL;
  }
  tp_lock_release(&call->lock);
  task_t *own = tp_call_current;
  if (own && own == call)
    return tp_call_error(id, ERR_WRONG_THREAD, "a handler waits for the result of its own request");
  int error = tp_self() ? tp_worker_leave() : 0; /* also a worker of another pool */
  if (error) return tp_call_error(id, error, tp_error_text(error));
  for (;;) {
    tp_latch latch = TP_UNSET;
    if (!(call = tp_call_find(cs, id))) return unknown(id);
    e = take_entry(call);
    bool busy = !e && call->waiter;
    if (!e && !busy) call->waiter = &latch;
    tp_lock_release(&call->lock);
    if (e) return &e->r;
    if (busy) return tp_call_error(id, ERR_BUSY, "another thread waits for this task");
    set_waits(own, &latch);
    uint64_t until_ns = own ? patience(own, deadline_ns) : deadline_ns;
    if (until_ns && tp_latch_sleepy(&latch) && tp_latch_sleep(&latch))
      tp_latch_block(&latch, until_ns == UINT64_MAX ? 0 : until_ns);
    set_waits(own, NULL);
    tp_lock_acquire(&call->lock);
    if (call->waiter == &latch) call->waiter = NULL;
    tp_lock_release(&call->lock);
    if (!until_ns) return tp_call_error(id, ERR_CANCELLED, "the task that waits is to end itself");
    if (deadline_ns != UINT64_MAX && tp_now_ns() >= deadline_ns) deadline_ns = 0;
    if (deadline_ns == 0) {
      if (!(call = tp_call_find(cs, id))) return unknown(id);
      e = take_entry(call);
      tp_lock_release(&call->lock);
      return e ? &e->r : NULL;
    }
  }
}

void threadpool_result_free(result_t *result) {
  tp_library_probe(); /* X4: locks, and the program's release function */
  tp_entry *e = (tp_entry *)result;
  if (!e) return;
  if (!e->final) {
    tp_put(e);
    return;
  }
  task_t *call = e->call;
  if (!call) return; /* the one entry that is nobody's */
  tp_call_release(e);
  tp_arena_put(&call->arena, call->text);
  call->text = NULL;
  tp_calls *cs = call->calls;
  if (tp_forked(cs->made_in)) return; /* P3: the record stays where it is */
  tp_lock_acquire(&call->lock);
  tp_call_drop_partials(call);
  bool orphan = tp_load(&call->stage, relaxed) == TP_CALL_ORPHAN; /* the lock is held */
  if (!orphan) tp_call_give(call);                                /* V3 */
  tp_lock_release(&call->lock);
  if (orphan) tp_calls_let_go(cs); /* V5 */
}

int tp_call_detach(tp_calls *cs, uint64_t id) {
  task_t *call = tp_call_find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  call->detached = true;
  tp_entry *e = NULL;
  if (call->deliver == THREADPOOL_BY_ID) {
    tp_call_drop_partials(call);
    if (tp_load(&call->stage, relaxed) == TP_CALL_DONE) e = tp_call_hand_over(call);
  }
  tp_call_tell_emitter(call);
  tell_waiter(call);
  tp_lock_release(&call->lock);
  if (e) threadpool_result_free(&e->r);
  return 0;
}

int tp_call_credit(tp_calls *cs, uint64_t id, uint32_t n) {
  task_t *call = tp_call_find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  call->waiting -= n < call->waiting ? n : call->waiting;
  tp_call_tell_emitter(call);
  tp_lock_release(&call->lock);
  return 0;
}

/* --- emitting */

/* Lock held: nobody is going to make room. */
static bool is_unwanted(task_t *call) {
  return call->detached || tp_load(&call->calls->closing, relaxed); /* see tp_calls_close */
}

/* A plain handler waits for room, without its seat. It looks now and then whether it is to end. */
static int wait_for_room(task_t *call) {
  int error = tp_self() ? tp_worker_leave() : 0;
  for (;;) {
    if (error) return error;
    if (tp_call_cancelled(call)) return ERR_CANCELLED;
    tp_latch latch = TP_UNSET;
    tp_lock_acquire(&call->lock);
    bool room = call->waiting < call->calls->limits.window || is_unwanted(call);
    // cppcheck-suppress autoVariables ; taken back below, under the lock
    if (!room) call->room = &latch;
    tp_lock_release(&call->lock);
    if (room) return 0;
    if (tp_latch_sleepy(&latch) && tp_latch_sleep(&latch))
      tp_latch_block(&latch, tp_now_ns() + 20 * TP_NS_PER_MS);
    tp_lock_acquire(&call->lock);
    if (call->room == &latch) call->room = NULL;
    tp_lock_release(&call->lock);
  }
}

int tp_call_emit(task_t *call, const void *data, size_t size) {
  if (size > UINT32_MAX) return ERR_INVALID_ARGUMENT;
  if (tp_forked(call->calls->made_in)) return tp_say_forked();
  bool by_callback = call->deliver == THREADPOOL_BY_CALLBACK;
  for (;;) {
    if (tp_call_cancelled(call)) return ERR_CANCELLED;
    tp_lock_acquire(&call->lock);
    bool full = !by_callback && call->waiting >= call->calls->limits.window;
    bool unwanted = full ? is_unwanted(call) : call->detached;
    if (full && !unwanted && call->op->poll) call->emit_waits = true;
    tp_lock_release(&call->lock);
    if (unwanted) return ERR_CANCELLED;
    if (!full) break;
    if (call->op->poll) return ERR_QUEUE_FULL;
    int error = wait_for_room(call);
    if (error) return error;
  }
  tp_entry *e = tp_get(sizeof *e + size + 1);
  if (!e) return ERR_MALLOC_FAILED;
  *e = (tp_entry){.call = call, .mark = call->result.mark};
  char *copy = (char *)(e + 1);
  if (size) memcpy(copy, data, size);
  copy[size] = '\0';
  e->r = (result_t){.task_id = call->result.r.task_id,
                    .data = copy,
                    .data_size = (uint32_t)size,
                    .flags = RESULT_PARTIAL | call->format,
                    .sequence = call->sequence++,
                    .outer_id = call->result.r.outer_id};
  if (by_callback) {
    e->call = NULL;
    call->callback(&e->r, call->user_data);
    return 0;
  }
  tp_lock_acquire(&call->lock);
  call->waiting++;
  if (call->deliver == THREADPOOL_BY_ID) {
    if (call->last)
      call->last->next = e;
    else
      call->first = e;
    call->last = e;
    tell_waiter(call);
  }
  tp_lock_release(&call->lock);
  if (call->deliver == THREADPOOL_BY_QUEUE) tp_completions_push(call->queue, e);
  return 0;
}
