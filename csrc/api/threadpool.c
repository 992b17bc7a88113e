/* threadpool.c - the entry points of threadpool.h: check the arguments, call down, nothing else. */
#include "api/pool.h"

#include "base/alloc.h"
#include "base/cpus.h"
#include "base/error.h"
#include "sched/scope.h"
#include "sync/lock.h"

/* A handle is never freed, only what it stands for: so a late call, or a second shutdown, is told that the pool
 * is closed. It costs a cache line for each pool there ever was; the list keeps them reachable. */
static _Atomic(threadpool_t *) handles;

static bool options_valid(const threadpool_options *o) {
  return o->workers >= 0 && o->workers <= THREADPOOL_MAX_WORKERS && o->blocking >= 0 &&
         o->blocking <= THREADPOOL_MAX_BLOCKING && o->park_timeout_ms >= 0 && o->drain_ms >= -1;
}

static void destroy(threadpool_t *pool) {
  tp_reactor_free(pool->reactor); /* first: its callbacks wake tasks */
  if (pool->sched) tp_sched_stop(pool->sched);
  if (pool->tasks) tp_tasks_free(pool->tasks);
  if (pool->sched) tp_sched_free(pool->sched);
  pool->sched = NULL;
  pool->tasks = NULL;
  pool->reactor = NULL;
}

threadpool_t *threadpool_create_with(const threadpool_options *options, int *error) {
  threadpool_options o = options ? *options : (threadpool_options){0};
  int code = ERR_INVALID_ARGUMENT;
  threadpool_t *pool = NULL;
  if (options_valid(&o)) {
    code = ERR_MALLOC_FAILED;
    pool = tp_alloc(sizeof *pool);
  }
  if (pool) {
    tp_sched_options s = {.workers = o.workers ? (unsigned)o.workers : tp_cpus_available(),
                          .blocking = o.blocking ? (unsigned)o.blocking : 512,
                          .park_timeout_ms = (unsigned)o.park_timeout_ms,
                          .idle_yield = o.idle_yield,
                          .pin = o.pin};
    pool->drain_ms = o.drain_ms < 0 ? 0 : o.drain_ms ? o.drain_ms : 5000;
    pool->sched = tp_sched_new(&s);
    if (pool->sched) pool->tasks = tp_tasks_new(pool->sched);
    if (pool->tasks) pool->reactor = tp_reactor_new();
    if (pool->reactor) {
      code = ERR_SUCCESS;
      pool->next = tp_load(&handles, relaxed);                     /* a guess, the CAS checks it */
      while (!tp_cas_weak(&handles, &pool->next, pool, relaxed)) { /* nobody reads it */
      }
    } else {
      destroy(pool);
      tp_free(pool);
      pool = NULL;
    }
  }
  if (error) *error = code;
  return pool;
}

/* Seq-cst against threadpool_shutdown: either we see closing, or it sees our call and waits for its end. */
static bool enter(threadpool_t *pool) {
  tp_add(&pool->calls, 1, seq_cst);
  if (tp_likely(!tp_load(&pool->closing, seq_cst))) return true;
  tp_sub(&pool->calls, 1, release);
  return false;
}

static void leave(threadpool_t *pool) {
  tp_sub(&pool->calls, 1, release);
}

/* Whether this thread is one of the pool's, or has a call into it on its stack: it would wait for itself. */
static bool is_inside(const threadpool_t *pool) {
  if (tp_my_threads == &pool->sched->threads) return true;
  for (tp_worker *w = tp_self(); w; w = w->outer)
    if (w->sched == pool->sched) return true;
  return false;
}

int threadpool_shutdown(threadpool_t *pool) {
  if (!pool || !enter(pool)) return ERR_INVALID_ARGUMENT;
  if (is_inside(pool)) {
    leave(pool);
    return ERR_WRONG_THREAD;
  }
  bool second = tp_swap(&pool->closing, true, seq_cst);
  leave(pool);
  if (second) return ERR_INVALID_ARGUMENT;
  const struct timespec moment = {0, 200000};
  while (tp_load(&pool->calls, seq_cst) > 0) nanosleep(&moment, NULL);
  tp_tasks_drain(pool->tasks, tp_now_ns() + (uint64_t)pool->drain_ms * TP_NS_PER_MS);
  destroy(pool);
  return 0;
}

int threadpool_call(threadpool_t *pool, threadpool_fn fn, void *arg) {
  if (!pool || !fn) return ERR_INVALID_ARGUMENT;
  if (!enter(pool)) return ERR_SHUTDOWN;
  tp_call(pool->sched, fn, arg);
  leave(pool);
  return 0;
}

int threadpool_broadcast(threadpool_t *pool, threadpool_fn fn, void *arg) {
  if (!pool || !fn) return ERR_INVALID_ARGUMENT;
  if (!enter(pool)) return ERR_SHUTDOWN;
  int error = tp_broadcast(pool->sched, fn, arg);
  leave(pool);
  return error;
}

threadpool_worker *threadpool_current(void) {
  return (threadpool_worker *)tp_self();
}

int threadpool_workers(threadpool_t *pool) {
  if (!pool || !enter(pool)) return 0;
  int n = (int)pool->sched->workers;
  leave(pool);
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
  if (!enter(pool)) return ERR_SHUTDOWN;
  tp_sched *s = pool->sched;
  int workers = (int)s->workers, error = index < -1 || index > workers ? ERR_INVALID_ARGUMENT : 0;
  *out = (threadpool_counters){0};
  for (int i = 0; !error && i <= workers; i++)
    if (index < 0 || index == i) add_counters(out, &s->seats[i].count);
  if (index < 0) add_counters(out, &s->outside);
  leave(pool);
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
