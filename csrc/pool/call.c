#include "pool/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"
#include "pool/crash.h"
#include "pool/request.h"

enum { SHARDS = 16 };

typedef struct shard {
  TP_ALIGNED tp_lock lock;
  tp_slab_cache cache;
} shard;

struct tp_calls {
  threadpool_t *pool;
  tp_tasks *tasks;
  tp_reactor *reactor;
  tp_ops *ops;
  symbol_table_t *symbols;
  tp_updaters *updaters;
  tp_calls_options limits;
  unsigned made_in; /* constant: tp_generation */
  tp_slab slab;
  TP_ALIGNED _Atomic uint32_t pending;        /* V4 */
  TP_ALIGNED _Atomic(tp_entry *) completions; /* newest first, taken whole */
  _Atomic int event_fd;                       /* -1: nobody has asked for it */
  tp_lock drain_lock;                         /* guards `ready` and the making of event_fd */
  tp_entry *ready;                            /* taken from completions, oldest first */
  _Atomic size_t orphans;                     /* V5 */
  shard shards[SHARDS];
};

/* --- records */

static shard *shard_of(tp_calls *cs) {
  static _Atomic unsigned threads;
  static _Thread_local unsigned number __attribute__((tls_model("initial-exec")));
  if (tp_unlikely(!number)) number = tp_add(&threads, 1, relaxed) + 1; /* only to spread them */
  return &cs->shards[number % SHARDS];
}

static task_t *take_record(tp_calls *cs) {
  shard *s = shard_of(cs);
  tp_lock_acquire(&s->lock);
  task_t *call = (task_t *)tp_slab_take(&cs->slab, &s->cache);
  tp_lock_release(&s->lock);
  return call;
}

/* Lock of the call held (V3). */
static void give_record(task_t *call) {
  tp_calls *cs = call->calls;
  shard *s = shard_of(cs);
  call->stage = TP_CALL_FREE;
  tp_lock_acquire(&s->lock);
  tp_slab_give(&cs->slab, &s->cache, &call->record);
  tp_lock_release(&s->lock);
}

static void release_data(tp_entry *e) {
  void (*release)(void *, void *) = e->release;
  void *data = e->r.data;
  e->release = NULL; /* first: it is the program's code, and may crash */
  e->r.data = NULL;
  e->r.data_size = 0;
  if (release) release(data, e->release_arg);
}

static void free_partials(task_t *call) {
  for (tp_entry *e = call->first, *next; e; e = next) {
    next = e->next;
    tp_put(e);
  }
  call->first = call->last = NULL;
  call->waiting = 0;
}

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

/* What only the handler needs. */
static void free_request(task_t *call) {
  yyjson_doc_free(call->doc);
  tp_arena_put(&call->arena, call->printed);
  call->doc = NULL;
  call->args = NULL;
  call->printed = NULL;
}

static void open_call(tp_letter *letter);

static void free_records(tp_calls *cs) {
  for (int i = 0; i < SHARDS; i++) tp_slab_cache_free(&cs->shards[i].cache);
  tp_slab_free(&cs->slab);
}

/* Have memory for so many from the start. */
static bool make_records(tp_calls *cs, uint32_t n) {
  task_t *made = NULL, *call;
  uint32_t i = 0;
  for (; i < n && (call = take_record(cs)); i++) {
    call->calls = cs;
    call->state = made;
    made = call;
  }
  for (; made; made = call) {
    call = made->state;
    give_record(made);
  }
  return i == n;
}

tp_calls *tp_calls_new(threadpool_t *pool, tp_tasks *tasks, tp_reactor *reactor,
                       const tp_calls_options *options) {
  tp_calls *cs = tp_alloc(sizeof *cs);
  if (!cs) return NULL;
  cs->pool = pool;
  cs->tasks = tasks;
  cs->reactor = reactor;
  cs->limits = *options;
  cs->made_in = tp_load(&tp_generation, relaxed);
  tp_store(&cs->event_fd, -1, relaxed); /* nobody else knows it yet */
  tp_slab_init(&cs->slab, sizeof(task_t), 0);
  cs->ops = tp_ops_new();
  cs->symbols = tp_symbols_new();
  cs->updaters = tp_updaters_new(tasks, open_call);
  if (cs->ops && cs->symbols && cs->updaters && make_records(cs, options->initial)) return cs;
  free_records(cs);
  tp_updaters_free(cs->updaters);
  tp_ops_free(cs->ops);
  if (cs->symbols) tp_symbols_free(cs->symbols);
  tp_free(cs);
  return NULL;
}

static void free_slab(tp_calls *cs) {
  free_records(cs);
  tp_free(cs);
}

/* Final ones are parts of their records. */
static void free_completions(tp_entry *e) {
  for (tp_entry *next; e; e = next) {
    next = e->next;
    if (!e->final) tp_put(e);
  }
}

void tp_calls_free(tp_calls *cs) {
  free_completions(cs->ready);
  free_completions(tp_load(&cs->completions, relaxed));
  tp_store(&cs->orphans, 1, relaxed); /* ours, until all records have been looked at */
  uint32_t used = tp_slab_used(&cs->slab);
  for (uint32_t i = 0; i < used; i++) {
    task_t *call = (task_t *)tp_slab_at(&cs->slab, i);
    tp_lock_acquire(&call->lock); /* V3 */
    if (call->stage == TP_CALL_FETCHED) {
      call->stage = TP_CALL_ORPHAN;
      tp_add(&cs->orphans, 1, relaxed);
    } else if (call->stage == TP_CALL_DONE) {
      free_partials(call);
      release_data(&call->result);
      tp_arena_put(&call->arena, call->text);
      call->text = NULL;
    }
    tp_lock_release(&call->lock);
  }
  int fd = tp_load(&cs->event_fd, relaxed);
  if (fd >= 0) close(fd);
  tp_updaters_free(cs->updaters);
  tp_ops_free(cs->ops);
  tp_symbols_free(cs->symbols);
  if (tp_sub(&cs->orphans, 1, acq_rel) == 1) free_slab(cs); /* sees what the last owner did */
}

const tp_calls_options *tp_calls_limits(const tp_calls *cs) {
  return &cs->limits;
}
tp_ops *tp_calls_ops(tp_calls *cs) {
  return cs->ops;
}
symbol_table_t *tp_calls_symbols(tp_calls *cs) {
  return cs->symbols;
}

/* --- delivery */

static void push_completion(tp_calls *cs, tp_entry *e) {
  tp_entry *top = tp_load(&cs->completions, relaxed); /* a guess, the CAS checks it */
  do e->next = top;
  while (!tp_cas_weak(&cs->completions, &top, e,
                      seq_cst)); /* before the look at event_fd; pairs with take */
  int fd = tp_load(&cs->event_fd, seq_cst);
  const uint64_t one = 1;
  if (!top && fd >= 0 && write(fd, &one, sizeof one) < 0) { /* full: it is readable anyway */
  }
}

/* Lock held. */
static void tell_waiter(task_t *call) {
  if (call->waiter) tp_latch_open(call->waiter);
}

/* Lock held: there is room for another partial entry, or nobody wants them any more. */
static void tell_emitter(task_t *call) {
  if (call->room) tp_latch_open(call->room);
  call->room = NULL;
  if (call->emit_waits && call->task) tp_task_wake(call->task);
  call->emit_waits = false;
}

/* Lock held: the final entry goes to somebody (V4). */
static tp_entry *hand_over(task_t *call) {
  call->stage = TP_CALL_FETCHED;
  tp_sub(&call->calls->pending, 1, relaxed); /* a limit: nothing is ordered by it */
  return &call->result;
}

/* The end: the final entry is complete. */
static void finish(task_t *call) {
  tp_entry *e = &call->result;
  e->r.sequence = call->sequence;
  if (e->r.status < 0) {
    release_data(e);
    if (!e->r.error_msg[0])
      snprintf(e->r.error_msg, sizeof e->r.error_msg, "%s", tp_error_text(e->r.status));
  }
  free_request(call);
  unpin(call);
  tp_lock_acquire(&call->lock);
  tp_task *task = call->task;
  call->task = NULL;
  call->stage = TP_CALL_DONE;
  /* Partial entries among the completions still point to the record: then the final one follows them. */
  bool discard = call->detached && !(call->deliver == THREADPOOL_BY_QUEUE && call->waiting > 0);
  if (discard || call->deliver == THREADPOOL_BY_CALLBACK) hand_over(call);
  int deliver = call->deliver;
  tp_calls *cs = call->calls;
  if (deliver == THREADPOOL_BY_ID) tell_waiter(call);
  tp_lock_release(&call->lock); /* a fetched one may be gone from here on */
  if (discard)
    threadpool_result_free(&e->r);
  else if (deliver == THREADPOOL_BY_CALLBACK)
    call->callback(&e->r, call->user_data);
  else if (deliver == THREADPOOL_BY_QUEUE)
    push_completion(cs, e);
  if (task) tp_task_unref(task);
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

static tp_poll run_call(tp_task *t, void *arg) {
  (void)t;
  guarded g = {arg, TP_READY};
  tp_crash crash;
  if (tp_likely(tp_guard_run(run_handler, &g, &crash))) return g.outcome;
  threadpool_fail(g.call, ERR_HANDLER_CRASH, "handler %s crashed: %s at address %p",
                  g.call->op->name, tp_crash_name(crash.signal), crash.address);
  return TP_READY;
}

/* One that is refused, but whose callback is to be called by a worker. */
static tp_poll run_nothing(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}

static void end_call(tp_task *t) {
  task_t *call = t->arg;
  int code = tp_task_code(t);
  if (!code && call->told && call->result.r.status == 0) code = ERR_CANCELLED;
  tp_clock_stop(&call->nap);
  bool late = call->limited && tp_clock_stop(&call->deadline);
  if (late && (code == ERR_CANCELLED || (!code && call->result.r.status == ERR_CANCELLED)))
    code = ERR_TIMEOUT;
  if (call->refused) code = call->refused;
  if (code) {
    call->result.r.status = code;
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
  tp_task_ref(t);
  tp_lock_acquire(&call->lock);
  call->task = t;
  call->stage = TP_CALL_LIVE;
  tp_lock_release(&call->lock);
  tp_task_wake(t);
  tp_task_unref(t);
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
  tp_task_ref(t); /* for us, below: the end gives up the call's own */
  tp_lock_acquire(&call->lock);
  call->task = t;
  call->stage = TP_CALL_LIVE;
  bool unwanted = call->unwanted;
  tp_lock_release(&call->lock);
  if (r->timeout_ms && !unwanted) {
    call->limited = true;
    error = tp_deadline_start(&call->deadline, cs->reactor, t,
                              call->begin_ns + r->timeout_ms * TP_NS_PER_MS);
    if (error) { /* it is cancelled, and ends with this code */
      call->limited = false;
      call->refused = error;
      unwanted = true;
    }
  }
  if (unwanted) tp_task_cancel(t);
  tp_task_wake(t);
  tp_task_unref(t);
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

/* Decode and start it: by an updater, or by who submits. */
static void open_call(tp_letter *letter) {
  task_t *call = (task_t *)((char *)letter - offsetof(task_t, letter));
  tp_request r = {.priority = THREADPOOL_NORMAL};
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
  if (q->deliver == THREADPOOL_BY_CALLBACK && !q->callback)
    return tp_say(ERR_INVALID_ARGUMENT, "request: no callback is given");
  return 0;
}

/* A record for this request, with its text; NULL: after tp_say. */
static task_t *accept(tp_calls *cs, const threadpool_request *q, uint64_t begin_ns) {
  if (check(q) != 0) return NULL;
  const char *text = q->json ? q->json : q->payload;
  size_t length = q->json ? (q->length ? q->length : strlen(q->json)) : q->size;
  bool fits = length <= cs->limits.max_request_bytes;
  task_t *call = take_record(cs);
  char *copy = NULL;
  if (call) call->arena.used = 0;
  if (call && fits && !(copy = copy_text(&call->arena, text ? text : "", length))) {
    tp_lock_acquire(&call->lock);
    call->calls = cs;
    give_record(call);
    tp_lock_release(&call->lock);
    call = NULL;
  }
  if (!call) {
    tp_say(ERR_MALLOC_FAILED, "out of memory for a request of %zu bytes", length);
    return NULL;
  }
  tp_lock_acquire(&call->lock); /* V1: a look-up by an old id may be at it */
  call->stage = TP_CALL_SENT;
  call->deliver = (uint8_t)q->deliver;
  call->detached = call->limited = call->emit_waits = call->unwanted = call->told = false;
  call->has_json = q->json;
  call->letter.next = NULL;
  call->waiting = 0;
  call->refused = 0;
  call->pins = NULL;
  call->sequence = 0;
  call->calls = cs;
  call->pool = cs->pool;
  call->op = NULL;
  call->task = NULL;
  call->waiter = call->room = NULL;
  call->first = call->last = NULL;
  call->callback = q->callback;
  call->user_data = q->user_data;
  call->state = NULL;
  call->begin_ns = begin_ns;
  call->opcode = q->opcode;
  call->text = copy;
  call->text_size = length;
  call->doc = NULL;
  call->args = NULL;
  call->printed = NULL;
  call->deadline = call->nap = (tp_alarm_clock){0};
  tp_entry *e = &call->result; /* its parts one by one: the message is four cache lines */
  e->next = NULL;
  e->call = call;
  e->final = true;
  e->release = NULL;
  e->r.task_id = tp_load(&call->record.id, relaxed); /* constant while it lives */
  e->r.status = 0;
  e->r.data = NULL;
  e->r.data_size = 0;
  e->r.error_msg[0] = '\0';
  e->r.flags = RESULT_FINAL;
  e->r.outer_id = 0;
  tp_lock_release(&call->lock);
  return call;
}

/* A bundle is worth sending if it takes longer to decode than to hand it over; and not larger than what one
 * updater should have for itself. */
enum { SEND_COUNT = 8, SEND_BYTES = 4096, BUNDLE_COUNT = 32, BUNDLE_BYTES = 32768 };

/* Accept up to n requests as one bundle; opens or sends it. */
static size_t submit_bundle(tp_calls *cs, const threadpool_request *q, size_t n, uint64_t begin_ns,
                            uint64_t *ids) {
  tp_letter *first = NULL, **last = &first;
  size_t done = 0, bytes = 0;
  for (task_t *call; done < n && bytes < BUNDLE_BYTES; done++) {
    if (!(call = accept(cs, &q[done], begin_ns))) break;
    ids[done] = call->result.r.task_id;
    bytes += call->text_size;
    *last = &call->letter;
    last = &call->letter.next;
  }
  if ((done >= SEND_COUNT || bytes >= SEND_BYTES) && tp_updaters_ready(cs->updaters)) {
    tp_updaters_send(cs->updaters, first);
    return done;
  }
  for (tp_letter *next; first; first = next) {
    next = first->next;
    open_call(first);
  }
  return done;
}

size_t tp_call_submit(tp_calls *cs, const threadpool_request *q, size_t n, uint64_t *ids) {
  uint64_t begin_ns = tp_now_ns();
  size_t done = 0;
  while (done < n) {
    size_t want = n - done < BUNDLE_COUNT ? n - done : BUNDLE_COUNT;
    uint32_t before = tp_add(&cs->pending, (uint32_t)want, relaxed), most = cs->limits.max_pending;
    size_t room = before >= most ? 0 : most - before < want ? most - before : want;
    size_t got = room ? submit_bundle(cs, q + done, room, begin_ns, ids + done) : 0;
    if (got < want) tp_sub(&cs->pending, (uint32_t)(want - got), relaxed);
    done += got;
    if (!room)
      tp_say(ERR_QUEUE_FULL, "%u requests are pending (max_pending): fetch results first", most);
    if (!got) break;
  }
  return done;
}

/* --- fetching */

/* Locks the call with this id; NULL: there is none whose final entry was not fetched yet. */
static task_t *find(tp_calls *cs, uint64_t id) {
  if (id < TP_SLAB_GENERATION || id >= TP_SLAB_MAX_ID) return NULL;
  task_t *call = (task_t *)tp_slab_at(&cs->slab, id);
  if (!call || tp_load(&call->record.id, relaxed) != id) return NULL; /* confirmed under the lock */
  tp_lock_acquire(&call->lock);
  bool here = tp_load(&call->record.id, relaxed) ==
                  id && /* written before the lock by who takes a record */
              call->stage >= TP_CALL_SENT &&
              call->stage <= TP_CALL_DONE;
  if (here) return call;
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
  tell_emitter(call);
  return e;
}

/* Lock held. */
static tp_entry *take_entry(task_t *call) {
  tp_entry *e = take_partial(call);
  if (!e && call->stage == TP_CALL_DONE) {
    e = hand_over(call);
    tell_waiter(call); /* it is not going to get one */
  }
  return e;
}

static result_t *unknown(uint64_t id) {
  return tp_call_error(id, ERR_INVALID_ARGUMENT,
                       "no such task: the id is unknown, or its result was already fetched");
}

result_t *tp_call_fetch(tp_calls *cs, uint64_t id, uint64_t deadline_ns) {
  task_t *call = find(cs, id);
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
  int error = tp_self() ? tp_worker_leave() : 0; /* also a worker of another pool */
  if (error) return tp_call_error(id, error, tp_error_text(error));
  for (;;) {
    tp_latch latch = TP_UNSET;
    if (!(call = find(cs, id))) return unknown(id);
    e = take_entry(call);
    bool busy = !e && call->waiter;
    if (!e && !busy) call->waiter = &latch;
    tp_lock_release(&call->lock);
    if (e) return &e->r;
    if (busy) return tp_call_error(id, ERR_BUSY, "another thread waits for this task");
    if (tp_latch_sleepy(&latch) && tp_latch_sleep(&latch))
      tp_latch_block(&latch, deadline_ns == UINT64_MAX ? 0 : deadline_ns);
    tp_lock_acquire(&call->lock);
    if (call->waiter == &latch) call->waiter = NULL;
    tp_lock_release(&call->lock);
    if (deadline_ns != UINT64_MAX && tp_now_ns() >= deadline_ns) deadline_ns = 0;
    if (deadline_ns == 0) {
      if (!(call = find(cs, id))) return unknown(id);
      e = take_entry(call);
      tp_lock_release(&call->lock);
      return e ? &e->r : NULL;
    }
  }
}

void threadpool_result_free(result_t *result) {
  tp_entry *e = (tp_entry *)result;
  if (!e) return;
  if (!e->final) {
    tp_put(e);
    return;
  }
  task_t *call = e->call;
  if (!call) return; /* the one entry that is nobody's */
  release_data(e);
  tp_arena_put(&call->arena, call->text);
  call->text = NULL;
  tp_calls *cs = call->calls;
  if (tp_forked(cs->made_in)) return; /* P3: the record stays where it is */
  tp_lock_acquire(&call->lock);
  free_partials(call);
  bool orphan = call->stage == TP_CALL_ORPHAN;
  if (!orphan) give_record(call); /* V3 */
  tp_lock_release(&call->lock);
  if (orphan && tp_sub(&cs->orphans, 1, acq_rel) == 1) free_slab(cs); /* V5 */
}

size_t tp_call_completions(tp_calls *cs, result_t **out, size_t n) {
  size_t got = 0;
  tp_entry *unwanted = NULL; /* freed without the lock: that calls the program's code */
  tp_lock_acquire(&cs->drain_lock);
  int fd = tp_load(&cs->event_fd, seq_cst);
  uint64_t count;
  if (fd >= 0 && read(fd, &count, sizeof count) < 0) { /* it was not readable */
  }
  while (got < n) {
    if (!cs->ready) { /* oldest first */
      tp_entry *e =
          tp_swap(&cs->completions, NULL, seq_cst); /* after the read; pairs with push_completion */
      for (tp_entry *next; e; e = next) {
        next = e->next;
        e->next = cs->ready;
        cs->ready = e;
      }
      if (!cs->ready) break;
    }
    tp_entry *e = cs->ready;
    cs->ready = e->next;
    task_t *call = e->call;
    tp_lock_acquire(&call->lock);
    bool detached = call->detached;
    if (e->final) {
      hand_over(call);
    } else {
      call->waiting--;
      e->call = NULL;
      tell_emitter(call);
    }
    tp_lock_release(&call->lock);
    if (detached) {
      e->next = unwanted;
      unwanted = e;
    } else {
      out[got++] = &e->r;
    }
  }
  /* What is left: of `ready`, or pushed before the read above, which took back what it had written. */
  const uint64_t one = 1;
  if (fd >= 0 && (cs->ready || tp_load(&cs->completions, seq_cst)) &&
      write(fd, &one, sizeof one) < 0) { /* it is readable anyway */
  }
  tp_lock_release(&cs->drain_lock);
  for (tp_entry *next; unwanted; unwanted = next) {
    next = unwanted->next;
    threadpool_result_free(&unwanted->r);
  }
  return got;
}

int tp_call_event_fd(tp_calls *cs) {
  tp_lock_acquire(&cs->drain_lock);
  int fd = tp_load(&cs->event_fd, relaxed); /* written under the lock */
  if (fd < 0) {
    fd = tp_fail_now() ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd >= 0) {
      tp_store(&cs->event_fd, fd, seq_cst); /* then the look: who pushed before did not see it */
      const uint64_t one = 1;
      if ((cs->ready || tp_load(&cs->completions, seq_cst)) && write(fd, &one, sizeof one) < 0) {
      }
    }
  }
  tp_lock_release(&cs->drain_lock);
  return fd >= 0 ? fd : tp_say(ERR_IO, "no descriptor to be had for the events of the pool");
}

/* --- from outside */

int tp_call_cancel(tp_calls *cs, uint64_t id) {
  task_t *call = find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  tp_task *t = call->task ? tp_task_ref(call->task) : NULL;
  bool sent = call->stage == TP_CALL_SENT;
  call->unwanted = sent;
  tp_lock_release(&call->lock);
  if (!t) return sent;
  bool asked = tp_task_cancel(t);
  tp_task_unref(t);
  if ((call = find(cs, id))) { /* after that: who waits for room looks whether it is to end */
    if (call->room) tell_emitter(call);
    tp_lock_release(&call->lock);
  }
  return asked;
}

int tp_call_detach(tp_calls *cs, uint64_t id) {
  task_t *call = find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  call->detached = true;
  tp_entry *e = NULL;
  if (call->deliver == THREADPOOL_BY_ID) {
    free_partials(call);
    if (call->stage == TP_CALL_DONE) e = hand_over(call);
  }
  tell_emitter(call);
  tell_waiter(call);
  tp_lock_release(&call->lock);
  if (e) threadpool_result_free(&e->r);
  return 0;
}

int tp_call_status(tp_calls *cs, uint64_t id) {
  task_t *call = find(cs, id);
  if (!call) return tp_say(ERR_INVALID_ARGUMENT, "no such task: %llu", (unsigned long long)id);
  int status = call->stage == TP_CALL_SENT ? THREADPOOL_QUEUED : THREADPOOL_DONE;
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
  release_data(e);
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

/* A plain handler waits for room, without its seat. It looks now and then whether it is to end. */
static int wait_for_room(task_t *call) {
  int error = tp_self() ? tp_worker_leave() : 0;
  for (;;) {
    if (error) return error;
    if (tp_call_cancelled(call)) return ERR_CANCELLED;
    tp_latch latch = TP_UNSET;
    tp_lock_acquire(&call->lock);
    bool room = call->waiting < call->calls->limits.window || call->detached;
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
    bool detached = call->detached,
         full = !by_callback && call->waiting >= call->calls->limits.window;
    if (full && !detached && call->op->poll) call->emit_waits = true;
    tp_lock_release(&call->lock);
    if (detached) return ERR_CANCELLED;
    if (!full) break;
    if (call->op->poll) return ERR_QUEUE_FULL;
    int error = wait_for_room(call);
    if (error) return error;
  }
  tp_entry *e = tp_get(sizeof *e + size + 1);
  if (!e) return ERR_MALLOC_FAILED;
  *e = (tp_entry){.call = call};
  char *copy = (char *)(e + 1);
  if (size) memcpy(copy, data, size);
  copy[size] = '\0';
  e->r = (result_t){.task_id = call->result.r.task_id,
                    .data = copy,
                    .data_size = (uint32_t)size,
                    .flags = RESULT_PARTIAL,
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
  if (call->deliver == THREADPOOL_BY_QUEUE) push_completion(call->calls, e);
  return 0;
}

int tp_call_nap(task_t *call, uint64_t deadline_ns) {
  if (tp_forked(call->calls->made_in)) return tp_say_forked();
  tp_clock_stop(&call->nap);
  call->nap = (tp_alarm_clock){0};
  return tp_sleep_start(&call->nap, call->calls->reactor, call->task, deadline_ns);
}
