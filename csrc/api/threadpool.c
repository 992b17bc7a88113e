/* threadpool.c - the entry points of threadpool.h: check the arguments, call down, nothing else. */
#include "api/process.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cpus.h"
#include "base/error.h"
#include "base/process.h"
#include "ops/builtin.h"
#include "pool/config.h"
#include "sched/guard.h"
#include "sched/scope.h"

static int out_of_range(const char *name, int64_t value, int64_t least, int64_t most) {
  return tp_say(ERR_INVALID_ARGUMENT, "%s is %lld: expected %lld to %lld", name, (long long)value,
                (long long)least, (long long)most);
}

static int check_options(const threadpool_options *o) {
#define RANGE(name, least, most)                                                                   \
  if (o->name < (least) || o->name > (most)) return out_of_range(#name, o->name, least, most)
#define MOST(name, most)                                                                           \
  if (o->name > (most)) return out_of_range(#name, o->name, 0, most)
  RANGE(workers, 0, THREADPOOL_MAX_WORKERS);
  RANGE(blocking, 0, THREADPOOL_MAX_BLOCKING);
  RANGE(drain_ms, -1, INT_MAX);
  RANGE(park_timeout_ms, 0, INT_MAX);
  MOST(max_pending, 1u << 24);
  MOST(max_request_bytes, 1u << 30);
  MOST(max_depth, 65536);
  MOST(window, 1u << 20);
  MOST(initial_capacity, 1u << 20);
#undef RANGE
#undef MOST
  return 0;
}

static void destroy(threadpool_t *pool) {
  tp_reactor_free(pool->reactor); /* first: its callbacks wake tasks */
  if (pool->sched) tp_sched_stop(pool->sched);
  if (pool->requests) tp_calls_free(pool->requests);
  if (pool->tasks) tp_tasks_free(pool->tasks);
  if (pool->sched) tp_sched_free(pool->sched);
  if (pool->plugins) {
    tp_plugins_close(pool->plugins);
    tp_free(pool->plugins);
  }
  tp_process_left();
  pool->sched = NULL;
  pool->tasks = NULL;
  pool->reactor = NULL;
  pool->requests = NULL;
  pool->plugins = NULL;
}

/* Everything but the handlers. */
static int build(threadpool_t *pool, const threadpool_options *o) {
  tp_sched_options s = {.workers = o->workers ? (unsigned)o->workers : tp_cpus_available(),
                        .blocking = o->blocking ? (unsigned)o->blocking : 512,
                        .park_timeout_ms = (unsigned)o->park_timeout_ms,
                        .idle_yield = o->idle_yield,
                        .pin = o->pin};
  tp_calls_options c = {.max_pending = o->max_pending ? o->max_pending : 65536,
                        .max_request_bytes =
                            o->max_request_bytes ? o->max_request_bytes : 64u << 20,
                        .max_depth = o->max_depth ? o->max_depth : 512,
                        .window = o->window ? o->window : 64,
                        .initial = o->initial_capacity ? o->initial_capacity : 256};
  pool->drain_ms = o->drain_ms < 0 ? 0 : o->drain_ms ? o->drain_ms : 5000;
  pool->sched = tp_sched_new(&s);
  if (pool->sched) pool->tasks = tp_tasks_new(pool->sched);
  if (pool->tasks) pool->reactor = tp_reactor_new();
  if (pool->reactor) pool->requests = tp_calls_new(pool, pool->tasks, pool->reactor, &c);
  return pool->requests ? 0 : tp_say(ERR_MALLOC_FAILED, "%s", tp_error_text(ERR_MALLOC_FAILED));
}

/* What frees the state of a poll handler: the function beside it that is called as it is, with _drop. `own`: it is a
 * plug-in's. */
static void *find_drop(const threadpool_t *pool, const void *own, const char *name) {
  char drop[TP_CONFIG_MAX_NAME + sizeof "_drop"];
  snprintf(drop, sizeof drop, "%s_drop", name);
  return own ? tp_plugins_beside(pool->plugins, own, drop) : tp_program_find(drop);
}

static int unusable(const tp_config_handler *h, const char *file, const char *why,
                    const char *expected) {
  return tp_say(ERR_INVALID_ARGUMENT, "%s:%d: %u=%s: %s%s", file, h->line, h->opcode, h->name, why,
                expected);
}

/* False: there is none of that name. */
static bool add_builtin(tp_ops *ops, const tp_config_handler *h, const char *file, int *error) {
  *error = tp_builtin_number(ops, h->name, h->opcode);
  if (*error) return *error != ERR_INVALID_ARGUMENT;
  const tp_op *op = tp_ops_by_code(ops, h->opcode);
  if (op->missing) return true;
  if (h->kind == TP_CONFIG_POLL && !op->poll)
    *error = unusable(h, file, "it is built in and not polled: expected the name alone", "");
  if (h->kind == TP_CONFIG_BLOCKING && !op->blocking)
    *error = unusable(h, file, "it is built in and does not block: expected the name alone", "");
  return true;
}

/* A line of the config file: `3=handler_write_memory`. */
static int add_configured(threadpool_t *pool, const tp_config_handler *h, const char *file) {
  tp_ops *ops = tp_calls_ops(pool->requests);
  int error;
  void *own = tp_plugins_find(pool->plugins, h->name);
  if (!own && add_builtin(ops, h, file, &error)) return error;
  void *found =
      own ? own : tp_program_find(h->name); /* last: the C library has a sleep() of its own */
  if (!found)
    return unusable(h, file,
                    "expected a function of a plug-in (handlers=...) or of the program, or one of ",
                    tp_builtin_names());
  const char *name = strncmp(h->name, "handler_", 8) == 0 ? h->name + 8 : h->name;
  if (!name[0] || strlen(name) > TP_OP_NAME_MOST)
    return unusable(h, file, "expected a name of 1 to 63 characters behind handler_", "");
  threadpool_handler handler = {
      .name = name, .opcode = h->opcode, .blocking = h->kind == TP_CONFIG_BLOCKING};
  /* ISO C has no cast from an object to a function pointer. */
  if (h->kind == TP_CONFIG_POLL) {
    void *drop = find_drop(pool, own, h->name);
    memcpy(&handler.poll, &found, sizeof found);
    memcpy(&handler.drop, &drop, sizeof drop);
  } else {
    memcpy(&handler.run, &found, sizeof found);
  }
  return tp_ops_add(ops, &handler, NULL);
}

static int add_handlers(threadpool_t *pool, const tp_config *c, const char *file) {
  int error = tp_builtin_add(tp_calls_ops(pool->requests), c == NULL);
  if (error || !c) return error;
  pool->plugins = tp_alloc(sizeof *pool->plugins);
  if (!pool->plugins) return tp_say(ERR_MALLOC_FAILED, "%s", tp_error_text(ERR_MALLOC_FAILED));
  for (size_t i = 0; i < c->plugin_count && !error; i++)
    error = tp_plugins_open(pool->plugins, c->plugins[i].path, file, c->plugins[i].line);
  for (size_t i = 0; i < c->handler_count && !error; i++)
    error = add_configured(pool, &c->handlers[i], file);
  return error;
}

static threadpool_t *create(const threadpool_options *o, const tp_config *c, const char *file,
                            int *error) {
  *error = check_options(o);
  if (*error) return NULL;
  threadpool_t *pool = tp_alloc(sizeof *pool);
  if (!pool) {
    *error = tp_say(ERR_MALLOC_FAILED, "%s", tp_error_text(ERR_MALLOC_FAILED));
    return NULL;
  }
  pool->made_in = tp_load(&tp_generation, relaxed);
  *error = tp_process_enter();
  if (*error) {
    tp_free(pool);
    return NULL;
  }
  *error = build(pool, o);
  if (!*error) *error = add_handlers(pool, c, file);
  if (*error) {
    destroy(pool);
    tp_free(pool);
    return NULL;
  }
  tp_process_add(pool);
  return pool;
}

threadpool_t *threadpool_create_with(const threadpool_options *options, int *error) {
  int code;
  threadpool_t *pool = create(options ? options : &(threadpool_options){0}, NULL, NULL, &code);
  if (error) *error = code;
  return pool;
}

threadpool_t *threadpool_create(const char *config_path) {
  if (!config_path) return threadpool_create_with(NULL, NULL);
  tp_config c;
  int error = tp_config_read(&c, config_path);
  if (error) return NULL;
  threadpool_t *pool = create(&c.options, &c, config_path, &error);
  tp_config_free(&c);
  return pool;
}

/* Seq-cst against threadpool_shutdown: either we see that it is shut, or it sees our call and waits for its end. The
 * first look lets the count fall to 0 however often a closed pool is called. In a handler it is a section (X3): one that
 * crashed in between, by a bad pointer or with its stack used up, would be counted for ever. */
static bool enter_unless(threadpool_t *pool, _Atomic bool *shut) {
  if (tp_unlikely(tp_load(shut, relaxed))) return false;
  tp_library_begin();
  tp_add(&pool->calls, 1, seq_cst);
  if (tp_likely(!tp_load(shut, seq_cst))) return true;
  tp_leave(pool);
  return false;
}

bool tp_enter(threadpool_t *pool) {
  return enter_unless(pool, &pool->closing);
}

bool tp_enter_late(threadpool_t *pool) {
  return !tp_forked(pool->made_in) && enter_unless(pool, &pool->over);
}

void tp_leave(threadpool_t *pool) {
  tp_sub(&pool->calls, 1, release);
  tp_library_end();
}

int tp_refused(const threadpool_t *pool) {
  if (tp_forked(pool->made_in)) return tp_say_forked();
  tp_process_hold();
  return tp_say(ERR_SHUTDOWN, "%s", tp_error_text(ERR_SHUTDOWN));
}

/* Whether this thread is one of the pool's, or has a call into it on its stack: it would wait for itself. */
static bool is_inside(const threadpool_t *pool) {
  if (tp_my_threads == &pool->sched->threads) return true;
  for (tp_worker *w = tp_self(); w; w = w->outer)
    if (w->sched == pool->sched) return true;
  return false;
}

static int closed_already(const threadpool_t *pool) {
  if (tp_forked(pool->made_in)) return tp_say_forked();
  return tp_say(ERR_INVALID_ARGUMENT, "the pool was already shut down");
}

static int shut_down(threadpool_t *pool, int drain_ms) {
  if (!tp_enter(pool)) return closed_already(pool);
  if (is_inside(pool)) {
    tp_leave(pool);
    return tp_say(ERR_WRONG_THREAD, "a pool cannot be shut down by one of its own threads");
  }
  tp_process_closing(
      pool); /* first: exit() in a signal handler finds out that it is we who end it */
  bool second = tp_swap(&pool->closing, true, seq_cst);
  tp_leave(pool);
  if (second) {
    tp_process_closing(NULL);
    return closed_already(pool);
  }
  const struct timespec moment = {0, 200000};
  tp_calls_close(pool->requests);
  uint64_t deadline_ns = tp_now_ns() + (uint64_t)drain_ms * TP_NS_PER_MS;
  tp_tasks_drain(pool->tasks, deadline_ns); /* first: who waits for a result is one of the calls */
  while (tp_load(&pool->calls, seq_cst) > 0) {
    nanosleep(&moment, NULL);
    tp_tasks_drain(pool->tasks, deadline_ns); /* what a call in the main seat has begun since */
  }
  tp_tasks_drain(pool->tasks, deadline_ns);
  tp_store(&pool->over, true, seq_cst);
  while (tp_load(&pool->calls, seq_cst) > 0) nanosleep(&moment, NULL); /* those that came late */
  destroy(pool);
  tp_process_closed();
  return 0;
}

int threadpool_shutdown(threadpool_t *pool) {
  if (!pool) return tp_say(ERR_INVALID_ARGUMENT, "the pool is NULL");
  return shut_down(pool, pool->drain_ms);
}

int threadpool_shutdown_within(threadpool_t *pool, int drain_ms) {
  if (!pool) return tp_say(ERR_INVALID_ARGUMENT, "the pool is NULL");
  if (drain_ms < -1) return out_of_range("drain_ms", drain_ms, -1, INT_MAX);
  return shut_down(pool, drain_ms < 0 ? 0 : drain_ms);
}

int threadpool_call(threadpool_t *pool, threadpool_fn fn, void *arg) {
  if (!pool || !fn) return ERR_INVALID_ARGUMENT;
  if (!tp_enter(pool)) return tp_refused(pool);
  if (is_inside(
          pool)) { /* it is kept by this thread, and fn may crash: nobody would count it down */
    tp_leave(pool);
    tp_call(pool->sched, fn, arg);
    return 0;
  }
  tp_call(pool->sched, fn, arg);
  tp_leave(pool);
  return 0;
}

int threadpool_broadcast(threadpool_t *pool, threadpool_fn fn, void *arg) {
  if (!pool || !fn) return ERR_INVALID_ARGUMENT;
  if (!tp_enter(pool)) return tp_refused(pool);
  int error = tp_broadcast(pool->sched, fn, arg);
  tp_leave(pool);
  return error;
}

threadpool_worker *threadpool_current(void) {
  return (threadpool_worker *)tp_self();
}

int threadpool_workers(threadpool_t *pool) {
  if (!pool || !tp_enter(pool)) return 0;
  int n = (int)pool->sched->workers;
  tp_leave(pool);
  return n;
}

static void add_counters(threadpool_counters *out, const tp_counters *c) {
#define ADD(name, text)                                                                            \
  out->name += tp_load(&c->name, relaxed); /* a recent value is what is promised */
  THREADPOOL_COUNTERS(ADD)
#undef ADD
}

int threadpool_stats(threadpool_t *pool, int index, threadpool_counters *out) {
  if (!pool || !out) return ERR_INVALID_ARGUMENT;
  if (!tp_enter(pool)) return tp_refused(pool);
  tp_sched *s = pool->sched;
  int workers = (int)s->workers, error = index < -1 || index > workers ? ERR_INVALID_ARGUMENT : 0;
  *out = (threadpool_counters){0};
  for (int i = 0; !error && i <= workers; i++)
    if (index < 0 || index == i) add_counters(out, &s->seats[i].count);
  if (index < 0) add_counters(out, &s->outside);
  tp_leave(pool);
  return error;
}

const char *threadpool_error_name(int code) {
  return tp_error_name(code);
}

const char *threadpool_error_text(int code) {
  return tp_error_text(code);
}

int threadpool_abi(void) {
  return THREADPOOL_ABI;
}
