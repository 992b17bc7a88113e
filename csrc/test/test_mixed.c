/* test_mixed.c - a million requests of all kinds at once: each has exactly one final result, of the right kind.
 *
 * Four threads have a ring of slots each, one for a request under way. Which request comes next, how its results are
 * delivered and what becomes of it follows from a seed. Whatever is seen of a request (by id, in a callback, among
 * the completions) is checked against its slot; the request's own "task_id" says which one it is.
 *
 * Wrong would be: a second final entry (`finals`), none (a wait in vain), an entry out of order (`sequence`), another's
 * entry (`outer`, `id`), or memory that grows with the number of requests. */
#include "test/help.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/rng.h"

enum {
  THREADS = 4,
  SLOTS = 512,        /* of each thread: together more than may be pending */
  MAX_PENDING = 1500, /* requests */
  WINDOW = 4,         /* less than the longest stream has parts */
  PARTS_MOST = 9,
  IN_HANDS = 64, /* fetched, but not counted down yet: at most one for each thread there is */
  CELL = 24,     /* bytes of a slot's memory */
  MOST_GROWTH_MB = 24,
  FOR_EVER = 3600000, /* milliseconds */
};

typedef enum { ECHO, PARTS, EMIT, MEMORY, BLOCK, PAYLOAD, SLEEP, TIMEOUT, CRASH, MALFORMED } kind;

typedef struct slot {
  uint64_t outer, number; /* number: of the request, counted from 1 by its thread */
  uint64_t id;            /* what submit returned */
  kind kind;
  int deliver;
  unsigned parts, position; /* position: in `memory` */
  bool may_be_cancelled, not_json;
  /* Written by whoever has the entry; by one after the other. */
  uint64_t seen_id, sequence;
  unsigned finals;
  int status;
  _Atomic bool over;
} slot;

typedef struct actor {
  tp_rng rng;
  uint64_t number;
  unsigned index;
  long refused; /* by max_pending */
  slot slots[SLOTS];
} actor;

static threadpool_t *pool;
static actor actors[THREADS];
static char memory[THREADS * SLOTS][CELL];
static _Atomic long accepted; /* and not seen to be over */
static bool closing;          /* requests may end by the shutdown */
static pthread_mutex_t queue =
    PTHREAD_MUTEX_INITIALIZER; /* so that entries are looked at in order */

static uint32_t roll(actor *a, uint32_t n) {
  return tp_rng_below(&a->rng, n);
}

/* --- handlers */

enum { OP_EMIT = 300, OP_BLOCK, OP_PAYLOAD, OP_CRASH, OP_CRASH_BLOCKING };

static void emit_parts(task_t *task) {
  uint64_t n = 0;
  threadpool_arg_uint(task, "n", &n);
  for (unsigned i = 0; i < n; i++) {
    char text[16];
    int length = snprintf(text, sizeof text, "p%u", i);
    if (threadpool_emit(task, text, (size_t)length) != 0) return;
  }
}
static void return_arguments(task_t *task) {
  size_t length;
  const char *json = threadpool_arg_json(task, NULL, &length);
  if (threadpool_return_copy(task, json, length) != 0)
    threadpool_fail(task, ERR_MALLOC_FAILED, "out of memory");
}
static void return_payload(task_t *task) {
  size_t size;
  const void *payload = threadpool_payload(task, &size);
  if (threadpool_return_copy(task, payload, size) != 0)
    threadpool_fail(task, ERR_MALLOC_FAILED, "out of memory");
}
static void crash(task_t *task) {
  (void)task;
  volatile int *volatile nowhere = (int *)0x10;
  (void)*nowhere; /* reads, as two that write to one place would be a race */
}

static void open_pool(threadpool_options o) {
  pool = test_pool(o);
  const threadpool_handler h[] = {
      {.name = "emit", .opcode = OP_EMIT, .run = emit_parts},
      {.name = "block", .opcode = OP_BLOCK, .run = return_arguments, .blocking = true},
      {.name = "payload", .opcode = OP_PAYLOAD, .run = return_payload},
      {.name = "crash", .opcode = OP_CRASH, .run = crash},
      {.name = "crash-b", .opcode = OP_CRASH_BLOCKING, .run = crash, .blocking = true}};
  for (size_t i = 0; i < sizeof h / sizeof *h; i++)
    assert_int_equal(threadpool_register(pool, &h[i]), 0);
  assert_int_equal(symbol_register(threadpool_symbols(pool), "memory", memory, sizeof memory), 0);
  closing = false;
  accepted = 0;
}

/* --- what comes back */

static bool has_text(const result_t *r, const char *text) {
  return r->data && r->data_size == strlen(text) && memcmp(r->data, text, r->data_size) == 0;
}

static int status_of(kind k) {
  switch (k) {
  case MALFORMED: return ERR_INVALID_JSON;
  case TIMEOUT: return ERR_TIMEOUT;
  case CRASH: return ERR_HANDLER_CRASH;
  case SLEEP: return ERR_CANCELLED;
  default: return 0;
  }
}

static void check_final(slot *s, const result_t *r) {
  char text[64];
  s->status = r->status;
  if (r->status == ERR_CANCELLED && (s->may_be_cancelled || closing)) return;
  if (r->status == ERR_SHUTDOWN && closing) return;
  if (r->status != status_of(s->kind))
    fprintf(stderr, "kind %d: %d %s\n", s->kind, r->status, r->error_msg);
  test_must(r->status == status_of(s->kind));
  if (r->status < 0) {
    test_must(r->error_msg[0] && !r->data);
    return;
  }
  switch (s->kind) {
  case PARTS:
  case EMIT:
    /* Who is told by threadpool_emit that it is to end returns without all parts. */
    test_must(s->sequence == s->parts || (s->kind == EMIT && (s->may_be_cancelled || closing)));
    break;
  case MEMORY:
    snprintf(text, sizeof text, "%llu", (unsigned long long)s->number);
    test_must(memcmp(memory[s->position], text, strlen(text)) == 0);
    break;
  case PAYLOAD:
    snprintf(text, sizeof text, "%llu", (unsigned long long)s->outer);
    test_must(has_text(r, text));
    break;
  default:
    snprintf(text, sizeof text, "{\"number\":%llu}", (unsigned long long)s->number);
    test_must(has_text(r, text));
  }
}

/* Takes the entry over. */
static void check_entry(slot *s, result_t *r) {
  bool final = r->flags == RESULT_FINAL;
  test_must(!tp_load(&s->over, acquire) && s->finals == 0);
  test_must(r->outer_id == (s->not_json || s->kind == PAYLOAD ? 0 : s->outer));
  test_must(s->sequence == 0 || r->task_id == s->seen_id);
  test_must(r->sequence == s->sequence);
  s->seen_id = r->task_id;
  if (final) {
    check_final(s, r);
    s->finals++;
    tp_sub(&accepted, 1, relaxed);
  } else {
    char text[16];
    snprintf(text, sizeof text, "p%llu", (unsigned long long)s->sequence);
    test_must(r->flags == RESULT_PARTIAL && r->status == 0 && has_text(r, text));
    test_must((s->kind == PARTS || s->kind == EMIT) && s->sequence < s->parts);
    s->sequence++;
  }
  threadpool_result_free(r);
  if (final) tp_store(&s->over, true, release); /* from here on it is its owner's again */
}

static void called_back(result_t *r, void *user_data) {
  check_entry(user_data, r);
}

static slot *slot_of(uint64_t outer) {
  uint64_t i = outer % (THREADS * SLOTS);
  slot *s = &actors[i / SLOTS].slots[i % SLOTS];
  test_must(s->outer == outer);
  return s;
}

/* All completions there are. */
static void take_completions(void) {
  if (pthread_mutex_trylock(&queue) != 0) return; /* somebody is at it */
  result_t *r[16];
  for (size_t n; (n = threadpool_completions(pool, r, 16)) > 0;)
    for (size_t i = 0; i < n; i++) {
      uint64_t outer = r[i]->outer_id;
      if (outer == 0) outer = strtoull(r[i]->data, NULL, 10); /* a payload is its own address */
      check_entry(slot_of(outer), r[i]);
    }
  pthread_mutex_unlock(&queue);
}

/* --- requests */

static kind choose(actor *a) {
  if (roll(a, 5000) == 0) return CRASH;
  uint32_t n = roll(a, 100);
  if (n < 10) return MALFORMED;
  if (n < 20) return TIMEOUT;
  if (n < 25) return SLEEP; /* to be cancelled, as some others */
  if (n < 50) return ECHO;
  if (n < 65) return PARTS;
  if (n < 66) return EMIT;
  if (n < 80) return MEMORY;
  return n < 85 ? BLOCK : PAYLOAD;
}

/* The arguments, and what comes with them. */
static const char *describe(actor *a, const slot *s, char *to, size_t room) {
  char parts[128] = "";
  switch (s->kind) {
  case MALFORMED:
    if (s->not_json) return "{\"op\": \"echo\", ";
    return roll(a, 2) ? "\"opcode\": \"8\"" : "\"op\": \"echo\", \"priority\": 7";
  case TIMEOUT:
    snprintf(to, room, "\"op\": \"sleep\", \"args\": {\"ms\": %d}, \"timeout_ms\": %d", FOR_EVER,
             1 + (int)roll(a, 3));
    break;
  case SLEEP: snprintf(to, room, "\"op\": \"sleep\", \"args\": {\"ms\": %d}", FOR_EVER); break;
  case PARTS:
    for (unsigned i = 0, at = 0; i < s->parts; i++)
      at += (unsigned)snprintf(parts + at, sizeof parts - at, "%s\"p%u\"", i ? "," : "", i);
    snprintf(to, room, "\"op\": \"echo\", \"args\": {\"parts\": [%s]}", parts);
    break;
  case EMIT: snprintf(to, room, "\"op\": \"emit\", \"args\": {\"n\": %u}", s->parts); break;
  case MEMORY:
    snprintf(
        to, room,
        "\"opcode\": 3, \"args\": {\"write_to\": \"memory\", \"offset\": %u, \"data\": \"%llu\"}",
        s->position * CELL, (unsigned long long)s->number);
    break;
  case CRASH: return roll(a, 2) ? "\"op\": \"crash\"" : "\"op\": \"crash-b\"";
  default:
    snprintf(to, room, "\"op\": \"%s\", \"args\": {\"number\": %llu}",
             s->kind == BLOCK ? "block" : "echo", (unsigned long long)s->number);
  }
  return to;
}

static void prepare(actor *a, slot *s, kind k) {
  unsigned position = a->index * SLOTS + (unsigned)(s - a->slots);
  a->number++;
  *s = (slot){.number = a->number, .position = position, .kind = k};
  s->outer = a->number * (THREADS * SLOTS) + position;
  s->deliver = (int)roll(a, 3);
  s->parts = (unsigned)roll(a, PARTS_MOST + 1);
  s->may_be_cancelled = k == SLEEP || (k != TIMEOUT && k != MALFORMED && roll(a, 100) < 7);
  /* Among the completions it is known by its number only. */
  s->not_json = k == MALFORMED && s->deliver != THREADPOOL_BY_QUEUE && roll(a, 2);
  if (k == PAYLOAD && (s->may_be_cancelled || closing) && s->deliver == THREADPOOL_BY_QUEUE)
    s->deliver = THREADPOOL_BY_ID;
}

static bool submit(actor *a, slot *s) {
  static const char *const priorities[] = {"high", "normal", "low"};
  char json[400], about[300], payload[32];
  threadpool_request q = {.deliver = s->deliver, .callback = called_back, .user_data = s};
  if (s->kind == PAYLOAD) {
    q.opcode = OP_PAYLOAD;
    q.payload = payload;
    q.size = (size_t)snprintf(payload, sizeof payload, "%llu", (unsigned long long)s->outer);
  } else {
    const char *text = describe(a, s, about, sizeof about);
    if (s->not_json)
      snprintf(json, sizeof json, "%s", text);
    else if (s->kind == MALFORMED)
      snprintf(json, sizeof json, "{\"task_id\": %llu, %s}", (unsigned long long)s->outer, text);
    else
      snprintf(json, sizeof json, "{\"task_id\": \"%llu\", \"priority\": \"%s\", %s}",
               (unsigned long long)s->outer, priorities[roll(a, 3)], text);
    q.json = json;
  }
  tp_add(&accepted, 1, relaxed);
  if (threadpool_submit_batch(pool, &q, 1, &s->id) == 1) {
    test_must(s->id != 0);
    return true;
  }
  tp_sub(&accepted, 1, relaxed);
  test_must(s->id == 0);
  return false;
}

/* --- the load */

/* One look at the results; true: it has had its final one. */
static bool is_over(slot *s, uint32_t wait_ms) {
  if (s->deliver == THREADPOOL_BY_ID) {
    while (!s->over) {
      result_t *r = wait_ms ? threadpool_wait_result(pool, s->id, wait_ms)
                            : threadpool_poll_result(pool, s->id);
      if (!r) return false;
      test_must(r->task_id == s->id);
      if (r->status == ERR_SHUTDOWN && closing && r->outer_id == 0) { /* of no request */
        threadpool_result_free(r);
        return false;
      }
      check_entry(s, r);
    }
    return true;
  }
  take_completions();
  return tp_load(&s->over, acquire);
}

static void finish(actor *a, slot *s) {
  if (!s->number) return;
  if (s->deliver == THREADPOOL_BY_ID && roll(a, 2))
    while (!is_over(s, UINT32_MAX)) {
    }
  else
    test_wait(is_over(s, 0));
  test_must(s->finals == 1 && s->seen_id == s->id);
  s->number = 0;
}

static bool is_full(void) {
  return strstr(threadpool_last_error(), "max_pending");
}

/* Somebody has to fetch for others to be accepted. */
static void make_room(actor *a) {
  a->refused++;
  take_completions();
  for (int i = 0; i < SLOTS; i++) {
    slot *s = &a->slots[i];
    if (s->number && s->id && s->deliver == THREADPOOL_BY_ID) is_over(s, 0);
  }
}

/* Nobody will see what becomes of it, so its slot is free at once. */
static bool is_detached(actor *a, slot *s) {
  bool any = s->kind == ECHO || s->kind == PARTS || s->kind == TIMEOUT || s->kind == MALFORMED;
  if (!any || s->deliver != THREADPOOL_BY_ID || roll(a, 10) > 0) return false;
  if (roll(a, 2)) is_over(s, 0);
  if (s->over) return false;
  test_must(threadpool_detach(pool, s->id) == 0);
  threadpool_result_free(threadpool_poll_result(pool, s->id)); /* unknown, or not yet */
  tp_sub(&accepted, 1, relaxed);
  s->number = 0;
  return true;
}

static long each;

static void *act(void *arg) {
  actor *a = arg;
  for (long i = 0; i < each; i++) {
    slot *s = &a->slots[i % SLOTS];
    finish(a, s);
    prepare(a, s, choose(a));
    while (!submit(a, s)) {
      test_must(is_full());
      make_room(a);
    }
    test_must(tp_load(&accepted, relaxed) <= MAX_PENDING + IN_HANDS);
    if (is_detached(a, s)) continue;
    if (!s->may_be_cancelled) continue;
    slot *other = &a->slots[roll(a, SLOTS)]; /* now, or one that has been there for a while */
    slot *which = s->kind != SLEEP && other->number && other->may_be_cancelled ? other : s;
    int asked = threadpool_cancel(pool, which->id);
    test_must(asked == 1 || which->kind != SLEEP || which != s);
  }
  for (int i = 0; i < SLOTS; i++) finish(a, &a->slots[i]);
  return NULL;
}

static pthread_t threads[THREADS];

static void start_actors(void *(*fn)(void *), uint64_t seed) {
  for (unsigned i = 0; i < THREADS; i++) {
    memset(actors[i].slots, 0, sizeof actors[i].slots);
    actors[i].index = i;
    tp_rng_seed(&actors[i].rng, seed + i);
    assert_int_equal(pthread_create(&threads[i], NULL, fn, &actors[i]), 0);
  }
}
static void join_actors(void) {
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

static long resident_mb(void) {
  long pages = 0, ignored;
  FILE *f = fopen("/proc/self/statm", "r");
  if (!f || fscanf(f, "%ld %ld", &ignored, &pages) != 2) pages = 0;
  if (f) fclose(f);
  return pages * sysconf(_SC_PAGESIZE) >> 20;
}

static long requests(void) {
#ifdef TEST_SANITIZED
  return test_size(20000, 100000);
#else
  return test_size(50000, 1000000);
#endif
}

static void a_fresh_request_works(void) {
  uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\", \"args\": {\"fresh\": true}}");
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  assert_int_equal(r->status, 0);
  assert_string_equal(r->data, "{\"fresh\":true}");
  threadpool_result_free(r);
}

/* Nothing of the load is left: exactly so many are accepted as if it had never been. */
static void exactly_max_pending_are_accepted(void) {
  static uint64_t ids[MAX_PENDING];
  for (int i = 0; i < MAX_PENDING; i++) {
    const char *json = "{\"op\": \"sleep\", \"args\": {\"ms\": 3600000}}";
    test_wait((ids[i] = threadpool_submit(pool, json)) != 0); /* detached ones may still be there */
  }
  assert_true(threadpool_submit(pool, "{\"op\": \"echo\"}") == 0 && is_full());
  for (int i = 0; i < MAX_PENDING; i++) {
    assert_int_equal(threadpool_cancel(pool, ids[i]), 1);
    result_t *r = threadpool_wait_result(pool, ids[i], UINT32_MAX);
    assert_int_equal(r->status, ERR_CANCELLED);
    threadpool_result_free(r);
  }
}

static void each_request_has_one_final_result(void **state) {
  (void)state;
  open_pool((threadpool_options){
      .workers = 3, .blocking = 256, .max_pending = MAX_PENDING, .window = WINDOW});
  each = requests() / THREADS / 10; /* until everything has its size */
  start_actors(act, 1);
  join_actors();
  long before_mb = resident_mb();
  each = requests() / THREADS - each;
  start_actors(act, 100);
  join_actors();
  long growth_mb = resident_mb() - before_mb;
#ifdef TEST_SANITIZED
  (void)growth_mb;
#else
  if (growth_mb > MOST_GROWTH_MB) fail_msg("%ld MB more than before", growth_mb);
#endif
  exactly_max_pending_are_accepted();
  a_fresh_request_works();
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- a shutdown in the middle */

static _Atomic long begun;

static bool is_closed(void) {
  return threadpool_status(pool, 1) == ERR_SHUTDOWN;
}

/* Some of what a program does with a request; all of it may come too late. */
static void touch(actor *a, slot *s) {
  if (!s->number || s->over) return;
  switch (roll(a, 4)) {
  case 0: threadpool_cancel(pool, s->id); break;
  case 1:
    if (s->deliver == THREADPOOL_BY_ID) is_over(s, s->kind == SLEEP ? 1 : UINT32_MAX);
    break;
  default:
    if (s->deliver != THREADPOOL_BY_CALLBACK) is_over(s, 0);
  }
}

static void *act_until_closed(void *arg) {
  actor *a = arg;
  for (int i = 0; i < SLOTS; i++) {
    slot *s = &a->slots[i];
    kind k = choose(a);
    prepare(a, s, roll(a, 100) == 0 ? CRASH : k);
    if (!submit(a, s)) {
      test_must(strcmp(threadpool_last_error(), threadpool_error_text(ERR_SHUTDOWN)) == 0);
      s->number = 0;
      break;
    }
    tp_add(&begun, 1, release); /* pairs with the wait for it */
    touch(a, &a->slots[roll(a, (uint32_t)i + 1)]);
  }
  test_wait((touch(a, &a->slots[roll(a, SLOTS)]), is_closed()));
  char json[] = "{\"op\": \"echo\"}";
  test_must(threadpool_submit(pool, json) == 0);
  return NULL;
}

/* Of what was accepted: a callback was called once with a final entry; others at most once. */
static void each_callback_has_had_its_final_entry(void) {
  for (int i = 0; i < THREADS; i++)
    for (int k = 0; k < SLOTS; k++) {
      const slot *s = &actors[i].slots[k];
      if (!s->number) continue;
      if (s->deliver == THREADPOOL_BY_CALLBACK) {
        assert_int_equal(s->finals, 1);
        assert_true(s->seen_id == s->id);
      }
      assert_in_range(s->finals, 0, 1);
    }
}

static void a_shutdown_ends_everything_in_the_middle(void **state) {
  (void)state;
  static const int drains[] = {-1, 1, 20};
  tp_rng rng;
  tp_rng_seed(&rng, 7);
  for (int i = 0; i < test_size(10, 50); i++) {
    open_pool((threadpool_options){
        .workers = 1 + i % 3, .drain_ms = drains[i % 3], .max_pending = 4096, .window = WINDOW});
    closing = true;
    begun = 0;
    result_t *kept =
        threadpool_wait_result(pool, threadpool_submit(pool, "{\"op\": \"echo\"}"), UINT32_MAX);
    long middle = tp_rng_below(&rng, THREADS * SLOTS * 3 / 4);
    start_actors(act_until_closed, 1000 + (uint64_t)i * THREADS);
    test_wait(tp_load(&begun, acquire) >= middle);
    assert_int_equal(threadpool_shutdown(pool), 0);
    join_actors();
    each_callback_has_had_its_final_entry();
    assert_true(threadpool_submit(pool, "{\"op\": \"echo\"}") == 0);
    result_t *r = threadpool_wait_result(pool, 1, UINT32_MAX);
    assert_int_equal(r->status, ERR_SHUTDOWN);
    threadpool_result_free(r);
    assert_int_equal(kept->status, 0);
    threadpool_result_free(kept);
  }
}

/* --- found in passing */

static uint64_t submit_to_queue(const char *json) {
  threadpool_request q = {.json = json, .deliver = THREADPOOL_BY_QUEUE};
  uint64_t id;
  assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
  return id;
}

/* C comes between two calls, the second of which takes B and no more. Wrong: C is there, and nobody is told. */
static void the_event_stays_while_there_are_completions(void **state) {
  (void)state;
  open_pool((threadpool_options){.workers = 1});
  int fd = threadpool_event_fd(pool);
  const char *json = "{\"op\": \"echo\"}";
  submit_to_queue(json);
  submit_to_queue(json);
  for (int i = 0; i < 3; i++) {
    a_fresh_request_works(); /* the only worker has done what came before */
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 1);
    result_t *r;
    assert_int_equal(threadpool_completions(pool, &r, 1), 1);
    threadpool_result_free(r);
    if (i == 0) submit_to_queue(json);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static _Atomic bool may_emit;
static _Atomic uint64_t inner;
static void emit_late(task_t *task) {
  test_wait(tp_load(&may_emit, acquire));
  threadpool_emit(task, "x", 1);
}
static void submit_inner(task_t *task) { /* by the worker, from what it has freed last */
  inner = threadpool_submit(threadpool_pool(task), "{\"op\": \"late\"}");
}

/* Wrong: entries of a detached request count in the window of whoever has its record now, who waits for ever. */
static void a_detached_stream_leaves_its_record_in_order(void **state) {
  (void)state;
  open_pool((threadpool_options){.workers = 1, .window = WINDOW});
  const threadpool_handler h[] = {{.name = "late", .opcode = -1, .run = emit_late},
                                  {.name = "inner", .opcode = -1, .run = submit_inner}};
  for (int i = 0; i < 2; i++) assert_int_equal(threadpool_register(pool, &h[i]), 0);
  may_emit = false;
  uint64_t id = submit_to_queue("{\"op\": \"echo\", \"args\": {\"parts\": "
                                "[\"0\", \"1\", \"2\", \"3\", \"4\", \"5\"]}}");
  a_fresh_request_works(); /* it waits at the full window */
  assert_int_equal(threadpool_detach(pool, id), 0);
  a_fresh_request_works();
  uint64_t outer = threadpool_submit(pool, "{\"op\": \"inner\"}");
  threadpool_result_free(threadpool_wait_result(pool, outer, UINT32_MAX));
  result_t *r[8];
  assert_int_equal(threadpool_completions(pool, r, 8), 0);
  tp_store(&may_emit, true, release); /* pairs with emit_late */
  for (uint32_t flags = 0; flags != RESULT_FINAL;) {
    result_t *entry = threadpool_wait_result(pool, inner, UINT32_MAX);
    flags = entry->flags;
    assert_int_equal(entry->status, 0);
    threadpool_result_free(entry);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void *wait_for_its_end(void *arg) {
  uint64_t id = *(uint64_t *)arg;
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  /* It was told of the end, or had not begun to wait. */
  test_must(r && (r->status == ERR_CANCELLED || r->status == ERR_SHUTDOWN));
  threadpool_result_free(r);
  return NULL;
}

/* Wrong: the shutdown waits for who waits, and so for the hour to pass. */
static void a_shutdown_does_not_wait_for_who_waits(void **state) {
  (void)state;
  open_pool((threadpool_options){.workers = 1, .drain_ms = -1});
  uint64_t id = threadpool_submit(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 3600000}}");
  assert_int_equal(pthread_create(&threads[0], NULL, wait_for_its_end, &id), 0);
  test_wait(tp_load(&pool->calls, relaxed) == 1);
  assert_int_equal(threadpool_shutdown(pool), 0);
  pthread_join(threads[0], NULL);
}

static pthread_t caller;
static _Atomic bool was_called;
static void note_caller(result_t *r, void *user_data) {
  (void)user_data;
  caller = pthread_self();
  threadpool_result_free(r);
  tp_store(&was_called, true, release);
}
/* Wrong: it is called inside the submit, with whatever locks the program holds there. */
static void the_callback_of_a_bad_request_is_called_by_a_worker(void **state) {
  (void)state;
  open_pool((threadpool_options){.workers = 1});
  was_called = false;
  assert_true(threadpool_submit_with_callback(pool, "no JSON", note_caller, NULL) > 0);
  test_wait(tp_load(&was_called, acquire));
  assert_false(pthread_equal(caller, pthread_self()));
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void end_when_asked(task_t *task) {
  test_wait(threadpool_cancelled(task));
}
/* Wrong: what ended because it was asked to looks like a success. */
static void who_ends_when_asked_was_cancelled(void **state) {
  (void)state;
  open_pool((threadpool_options){.workers = 1});
  const threadpool_handler h = {.name = "asked", .opcode = -1, .run = end_when_asked};
  assert_int_equal(threadpool_register(pool, &h), 0);
  const char *json[] = {"{\"op\": \"asked\", \"timeout_ms\": 5}", "{\"op\": \"asked\"}"};
  const int status[] = {ERR_TIMEOUT, ERR_CANCELLED};
  for (int i = 0; i < 2; i++) {
    uint64_t id = threadpool_submit(pool, json[i]);
    if (i) test_wait(threadpool_status(pool, id) == THREADPOOL_RUNNING);
    if (i) assert_int_equal(threadpool_cancel(pool, id), 1);
    result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
    assert_int_equal(r->status, status[i]);
    threadpool_result_free(r);
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_request_has_one_final_result),
      cmocka_unit_test(a_shutdown_ends_everything_in_the_middle),
      cmocka_unit_test(the_event_stays_while_there_are_completions),
      cmocka_unit_test(a_detached_stream_leaves_its_record_in_order),
      cmocka_unit_test(a_shutdown_does_not_wait_for_who_waits),
      cmocka_unit_test(the_callback_of_a_bad_request_is_called_by_a_worker),
      cmocka_unit_test(who_ends_when_asked_was_cancelled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
