/* call.c - a request from its submission to its end. Rules V1 and V2: call.h. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "pool/calls.h"
#include "pool/completions.h"
#include "pool/crash.h"
#include "pool/request.h"

/* --- regions */

int tp_call_pin(task_t *call, const char *name, size_t length, uint32_t access,
                tp_symbol_pin_t *out) {
  tp_pin *p = tp_get(sizeof *p);
  if (!p) return tp_say(ERR_MALLOC_FAILED, "out of memory");
  int error = tp_symbol_pin(call->calls->symbols, name, length, access, &p->pin);
  if (error) {
    tp_put(p);
    return error;
  }
  p->next = call->pins;
  call->pins = p;
  *out = p->pin;
  return 0;
}

static void unpin(task_t *call) {
  for (tp_pin *p = call->pins, *next; p; p = next) {
    next = p->next;
    tp_symbol_unpin(&p->pin);
    tp_put(p);
  }
  call->pins = NULL;
}

/* --- the end */

/* What only the handler needs. */
static void free_request(task_t *call) {
  yyjson_doc_free(call->doc);
  for (tp_printed *p = call->printed, *next; p; p = next) {
    next = p->next;
    tp_arena_put(&call->arena, p->text);
    tp_arena_put(&call->arena, p);
  }
  call->doc = NULL;
  call->args = NULL;
  call->printed = NULL;
}

/* The end: the final entry is complete. */
static void finish(task_t *call) {
  tp_entry *e = &call->result;
  e->r.sequence = call->sequence;
  if (e->r.data) e->r.flags |= call->format;
  if (e->r.status < 0) {
    if (!e->r.error_msg[0])
      snprintf(e->r.error_msg, sizeof e->r.error_msg, "%s", tp_error_text(e->r.status));
  }
  free_request(call);
  unpin(call);
  tp_call_deliver(call);
}

/* --- the task of a call */

typedef struct guarded {
  task_t *call;
  tp_poll outcome;
} guarded;

/* The handler, and nothing of ours: it may crash. */
static void run_handler(void *arg) {
  guarded *g = arg;
  const tp_op *op = g->call->op;
  if (!op->poll) {
    op->run(g->call);
    return;
  }
  switch (op->poll(g->call, &g->call->state)) {
  case THREADPOOL_PENDING: g->outcome = TP_PENDING; break;
  case THREADPOOL_AGAIN: g->outcome = TP_YIELD; break;
  default: g->outcome = TP_READY;
  }
}

static void crashed(task_t *call, const char *where, const tp_crash *crash) {
  threadpool_fail(call, ERR_HANDLER_CRASH, "handler %s crashed%s: %s at address %p", call->op->name,
                  where, tp_crash_name(crash->signal), crash->address);
}

_Thread_local task_t *tp_call_current __attribute__((tls_model("initial-exec")));

static tp_poll run_call(tp_task *t, void *arg) {
  (void)t;
  guarded g = {arg, TP_READY};
  /* All lines of it at once, as they come from the submitter's core. */
  tp_prefetch(&g.call->text);
  tp_prefetch(&g.call->op);
  tp_prefetch(&g.call->result.next);
  tp_prefetch(g.call->arena.memory);
  tp_crash crash;
  tp_call_current = arg;
  bool returned = tp_guard_run(run_handler, &g, &crash);
  tp_call_current = NULL;
  if (tp_likely(returned)) return g.outcome;
  if (crash.signal == 0) /* lua/stop.h: it was told to end, and made to */
    threadpool_fail(g.call, ERR_CANCELLED, "stopped: it did not end when it was told to");
  else
    crashed(g.call, "", &crash);
  return TP_READY;
}

/* What a poll handler has left, however it ended. It may crash. */
static void run_drop(void *arg) {
  task_t *call = arg;
  void *state = call->state;
  call->state = NULL;
  call->op->drop(state);
}

/* One that is refused, but whose callback is to be called by a worker. */
static tp_poll run_nothing(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}

static void end_call(tp_task *t) {
  task_t *call = t->arg;
  tp_crash crash;
  if (call->state && call->op->drop && !tp_guard_run(run_drop, call, &crash))
    crashed(call, " in its drop", &crash);
  int code = tp_task_code(t);
  if (!code && call->told && call->result.r.status == 0) code = ERR_CANCELLED;
  if (call->napped) tp_clock_stop(&call->nap);
  bool late = call->limited && tp_clock_stop(&call->deadline);
  if (late && (code == ERR_CANCELLED || (!code && call->result.r.status == ERR_CANCELLED)))
    code = ERR_TIMEOUT;
  if (call->refused) code = call->refused;
  if (code) {
    call->result.r.status = code;
    tp_call_release(&call->result); /* what it failed with is not what it would have told */
    if (!call->refused) call->result.r.error_msg[0] = '\0';
  }
  finish(call);
}

/* --- submission */

static char *copy_text(tp_arena *arena, const char *text, size_t length) {
  char *copy = tp_arena_get(arena, length + YYJSON_PADDING_SIZE);
  if (!copy) return NULL;
  memcpy(copy, text, length);
  memset(copy + length, 0, YYJSON_PADDING_SIZE);
  return copy;
}

static void note(task_t *call, int code, const char *message) {
  call->result.r.status = code;
  snprintf(call->result.r.error_msg, sizeof call->result.r.error_msg, "%s", message);
}

/* The task is the call's until its end, which takes it back under the lock: so it needs no reference. False: it was
 * cancelled meanwhile. */
static bool make_live(task_t *call, tp_task *t) {
  tp_lock_acquire(&call->lock);
  call->task = t;
  tp_store(&call->stage, TP_CALL_LIVE, relaxed); /* the lock is held */
  bool wanted = !call->unwanted;
  tp_lock_release(&call->lock);
  return wanted;
}

/* A request that cannot be carried out. Callbacks are called by workers, not by the submitter: it may hold locks of
 * its own, and is in a call of the pool. Without a task for that (memory, or the pool closes) it is called here. */
static void refuse(task_t *call, int code, const char *message) {
  note(call, code, message);
  tp_task *t = NULL;
  if (call->deliver == THREADPOOL_BY_CALLBACK) {
    tp_spawn_spec spec = {.poll = run_nothing, .arg = call, .end = end_call, .priority = TP_NORMAL};
    int error;
    t = tp_task_new(call->calls->tasks, &spec, &error);
  }
  if (!t) {
    finish(call);
    return;
  }
  call->refused = code;
  make_live(call, t);
  tp_task_post(t);
}

static int start(task_t *call, const tp_request *r) {
  tp_calls *cs = call->calls;
  if (!r->op) return tp_say(ERR_UNKNOWN_OPCODE, "no operation"); /* the decoder has found one */
  tp_spawn_spec spec = {.poll = run_call,
                        .arg = call,
                        .end = end_call,
                        .priority = (tp_priority)r->priority,
                        .blocking = r->op->blocking};
  int error;
  tp_task *t = tp_task_new(cs->tasks, &spec, &error);
  if (!t && error == ERR_SHUTDOWN)
    return tp_say(ERR_CANCELLED, "the pool was shut down before the request had begun");
  if (!t) return tp_say(error, "%s", tp_error_text(error));
  bool wanted = make_live(call, t);
  if (r->timeout_ms && wanted) {
    call->limited = true;
    call->timeout_ms = (uint32_t)r->timeout_ms;
    error = tp_deadline_start(&call->deadline, cs->reactor, t,
                              call->begin_ns + r->timeout_ms * TP_NS_PER_MS);
    if (error) { /* it is cancelled, and ends with this code */
      call->limited = false;
      call->refused = error;
      wanted = false;
    }
  }
  if (!wanted) tp_task_cancel(t);
  tp_task_post(t);
  return 0;
}

/* What is to be done; 0, or a code after tp_say. */
static int decode(task_t *call, tp_request *r) {
  tp_calls *cs = call->calls;
  if (!call->text)
    return tp_say(ERR_INVALID_JSON,
                  "the request has %zu bytes: expected at most %u (max_request_bytes)",
                  call->text_size, cs->limits.max_request_bytes);
  if (call->has_json)
    return tp_request_decode(r, cs->ops, &cs->limits, &call->arena, call->text, call->text_size);
  r->op = tp_ops_by_code(cs->ops, call->opcode);
  if (!r->op) return tp_say(ERR_UNKNOWN_OPCODE, "unknown opcode: %u", call->opcode);
  return r->op->missing ? tp_say(ERR_UNKNOWN_OPCODE, "opcode %u: %s", call->opcode, r->op->missing)
                        : 0;
}

static task_t *call_of(tp_letter *letter) {
  return (task_t *)((char *)letter - offsetof(task_t, letter));
}

/* While one request is decoded, have the next one come from the submitter's core. */
static void prefetch(tp_letter *next) {
  if (!next) return;
  const task_t *call = call_of(next);
  tp_prefetch(call);
  tp_prefetch(&call->text);
  tp_prefetch(&call->op);
  tp_prefetch(&call->result.next);
  tp_prefetch(&call->arena);
  tp_prefetch(call->arena.memory);
}

void tp_call_open(tp_letter *letter) {
  task_t *call = call_of(letter);
  prefetch(letter->next);
  tp_request r = {.priority = call->priority, .timeout_ms = call->timeout_ms};
  int error = decode(call, &r);
  call->op = r.op;
  call->doc = r.doc;
  call->args = r.args;
  call->result.r.outer_id = r.outer_id;
  if (!error) error = start(call, &r);
  if (error) refuse(call, error, tp_said());
}

static int check(const threadpool_request *q) {
  if (!q->json && q->size > 0 && !q->payload)
    return tp_say(ERR_INVALID_ARGUMENT, "request: neither json nor payload is given");
  if (q->deliver < THREADPOOL_BY_ID || q->deliver > THREADPOOL_BY_QUEUE)
    return tp_say(ERR_INVALID_ARGUMENT, "request: deliver %d is not one of THREADPOOL_BY_...",
                  q->deliver);
  if (q->priority < THREADPOOL_NORMAL || q->priority > THREADPOOL_LOW)
    return tp_say(ERR_INVALID_ARGUMENT,
                  "request: priority %d is not THREADPOOL_NORMAL, _HIGH or _LOW", q->priority);
  if (q->deliver == THREADPOOL_BY_CALLBACK && !q->callback)
    return tp_say(ERR_INVALID_ARGUMENT, "request: no callback is given");
  return 0;
}

enum { BUNDLE_COUNT = 32 };

/* Records for the requests of a batch: taken many at a time, as each time costs a lock. */
typedef struct supply {
  size_t count;
  uint8_t nested;
  bool alone; /* not part of a larger batch */
  task_t *call[BUNDLE_COUNT];
} supply;

/* A record for this request, with its text, out of the supply; NULL: after tp_say. */
static task_t *accept(tp_calls *cs, supply *s, const threadpool_request *q, uint64_t begin_ns) {
  if (check(q) != 0) return NULL;
  const char *text = q->json ? q->json : q->payload;
  size_t length = q->json ? (q->length ? q->length : strlen(q->json)) : q->size;
  bool fits = length <= cs->limits.max_request_bytes;
  task_t *call = s->count ? s->call[s->count - 1] : NULL;
  char *copy = NULL;
  if (call) call->arena.used = 0;
  if (call) call->arena.blocks = cs->blocks;
  if (!call || (fits && !(copy = copy_text(&call->arena, text ? text : "", length)))) {
    tp_say(ERR_MALLOC_FAILED, "out of memory for a request of %zu bytes", length);
    return NULL;
  }
  s->count--;
  call->deliver = (uint8_t)q->deliver;
  call->detached = call->limited = call->emit_waits = call->unwanted = call->told = call->napped =
      false;
  call->has_json = q->json;
  call->letter.next = NULL;
  call->waiting = 0;
  call->refused = 0;
  call->format = 0;
  call->pins = NULL;
  call->sequence = 0;
  call->calls = cs;
  call->pool = cs->pool;
  call->op = NULL;
  call->task = NULL;
  call->room = call->waits = NULL;
  call->first = call->last = NULL;
  call->queue = q->queue ? q->queue : cs->queue;
  if (call->queue->counted && q->deliver == THREADPOOL_BY_QUEUE)
    tp_add(&call->queue->expected, 1, relaxed); /* the owner's own doing, N4 */
  call->credited = q->credited;
  call->callback = q->callback;
  call->user_data = q->user_data;
  call->state = NULL;
  call->begin_ns = begin_ns;
  call->opcode = q->opcode;
  call->timeout_ms = q->timeout_ms;
  call->priority = q->priority == THREADPOOL_HIGH  ? TP_HIGH
                   : q->priority == THREADPOOL_LOW ? TP_LOW
                                                   : TP_NORMAL;
  call->nested = s->nested;
  call->text = copy;
  call->text_size = length;
  call->doc = NULL;
  call->args = NULL;
  call->printed = NULL;
  tp_entry *e = &call->result; /* its parts one by one: the message is four cache lines */
  e->next = NULL;
  e->call = call;
  e->final = true;
  e->mark = q->deliver == THREADPOOL_BY_QUEUE ? (uint32_t)(uintptr_t)q->user_data : 0;
  e->release = NULL;
  e->r.task_id = tp_load(&call->record.id, relaxed); /* constant while it lives */
  e->r.status = 0;
  e->r.data = NULL;
  e->r.data_size = 0;
  e->r.error_msg[0] = '\0';
  e->r.flags = RESULT_FINAL;
  e->r.outer_id = 0;
  tp_store(&call->stage, TP_CALL_SENT, release); /* V1; pairs with tp_call_find */
  return call;
}

/* A bundle is worth sending if it takes longer to decode than to hand it over; and not larger than what one
 * updater should have for itself. */
enum { SEND_COUNT = 8, SEND_BYTES = 4096, BUNDLE_BYTES = 16384 };

/* Accept up to n requests as one bundle; opens or sends it. */
static size_t submit_bundle(tp_calls *cs, supply *s, const threadpool_request *q, size_t n,
                            uint64_t begin_ns, uint64_t *ids) {
  tp_letter *first = NULL, **last = &first;
  size_t done = 0, bytes = 0;
  for (task_t *call; done < n && bytes < BUNDLE_BYTES; done++) {
    if (!s->count) s->count = tp_calls_take(cs, s->call, n - done);
    if (!(call = accept(cs, s, &q[done], begin_ns))) break;
    ids[done] = call->result.r.task_id;
    bytes += call->text_size;
    *last = &call->letter;
    last = &call->letter.next;
  }
  if ((done >= SEND_COUNT || bytes >= SEND_BYTES) &&
      tp_updaters_ready(cs->updaters, s->alone, bytes >= SEND_BYTES)) {
    tp_updaters_send(cs->updaters, first);
    return done;
  }
  for (tp_letter *next; first; first = next) {
    next = first->next;
    tp_call_open(first);
  }
  return done;
}

/* Whether one of them may have a timeout, which counts from its submission. */
static bool needs_clock(const threadpool_request *q, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (q[i].json || q[i].timeout_ms) return true;
  return false;
}

/* By how many poll handlers, one in the other, a request that is submitted now is. */
static uint8_t nested_here(const tp_calls *cs) {
  enum { MOST = 63 }; /* what its field holds */
  const task_t *own = tp_call_current;
  if (!own || own->calls != cs || !own->op->poll) return 0;
  return own->nested < MOST ? own->nested + 1 : MOST;
}

size_t tp_call_submit(tp_calls *cs, const threadpool_request *q, size_t n, uint64_t *ids) {
  uint64_t begin_ns = needs_clock(q, n) ? tp_now_ns() : 0;
  size_t done = 0;
  supply s;
  s.count = 0;
  s.nested = nested_here(cs);
  s.alone = n < SEND_COUNT;
  uint64_t allowed = (uint64_t)cs->limits.max_pending * (1u + s.nested); /* V4 */
  uint32_t most = allowed < INT32_MAX ? (uint32_t)allowed : INT32_MAX;
  while (done < n) {
    size_t want = n - done < BUNDLE_COUNT ? n - done : BUNDLE_COUNT;
    uint32_t before = tp_add(&cs->pending, (uint32_t)want, relaxed);
    size_t room = before >= most ? 0 : most - before < want ? most - before : want;
    size_t got = room ? submit_bundle(cs, &s, q + done, room, begin_ns, ids + done) : 0;
    if (got < want) tp_sub(&cs->pending, (uint32_t)(want - got), relaxed);
    done += got;
    if (!room)
      tp_say(ERR_QUEUE_FULL, "%u requests are pending (max_pending): fetch results first", most);
    if (!got) break;
  }
  if (s.count) tp_calls_give(cs, s.call, s.count);
  return done;
}

/* --- from outside */

int tp_call_cancel(tp_calls *cs, uint64_t id) {
  task_t *call = tp_call_find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  tp_task *t = call->task ? tp_task_ref(call->task) : NULL;
  bool sent = tp_load(&call->stage, relaxed) == TP_CALL_SENT; /* the lock is held */
  call->unwanted = sent;
  tp_lock_release(&call->lock);
  if (!t) return sent;
  bool asked = tp_task_cancel(t);
  tp_task_unref(t);
  call = tp_call_find(cs, id);
  if (call) { /* after that: who waits looks whether it is to end */
    if (call->room) tp_call_tell_emitter(call);
    tp_call_tell_waiting(call);
    tp_lock_release(&call->lock);
  }
  return asked;
}

bool tp_call_exists(tp_calls *cs, uint64_t id) {
  task_t *call = (task_t *)tp_slab_at(&cs->slab, id);
  if (!call) return false;
  tp_lock_acquire(&call->lock);
  /* V1: first the stage; pairs with accept */
  bool exists =
      tp_load(&call->stage, acquire) != TP_CALL_FREE && tp_load(&call->record.id, relaxed) == id;
  tp_lock_release(&call->lock);
  return exists;
}

int tp_call_status(tp_calls *cs, uint64_t id) {
  task_t *call = tp_call_find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  bool sent = tp_load(&call->stage, relaxed) == TP_CALL_SENT; /* the lock is held */
  int status = sent ? THREADPOOL_QUEUED : THREADPOOL_DONE;
  if (call->task) {
    switch (
        tp_lifecycle(tp_load(&call->task->state, relaxed))) { /* a recent one is what is promised */
    case TP_SCHEDULED: status = THREADPOOL_QUEUED; break;
    case TP_IDLE: status = THREADPOOL_WAITING; break;
    default: status = THREADPOOL_RUNNING;
    }
  }
  tp_lock_release(&call->lock);
  return status;
}

/* --- for handlers */

void tp_call_return(task_t *call, void *data, size_t size, void (*release)(void *, void *),
                    void *arg) {
  tp_entry *e = &call->result;
  tp_call_release(e);
  e->r.data = data;
  e->r.data_size = (uint32_t)size;
  e->release = release;
  e->release_arg = arg;
}

bool tp_call_cancelled(task_t *call) {
  bool cancelled = tp_task_cancelled(call->task);
  if (cancelled) call->told = true;
  return cancelled;
}

int tp_call_nap(task_t *call, uint64_t deadline_ns) {
  if (tp_forked(call->calls->made_in)) return tp_say_forked();
  if (call->napped) tp_clock_stop(&call->nap);
  call->napped = true;
  call->nap = (tp_alarm_clock){0};
  return tp_sleep_start(&call->nap, call->calls->reactor, call->task, deadline_ns);
}
