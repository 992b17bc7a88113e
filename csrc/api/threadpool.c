/* threadpool.c - the entry points of threadpool.h: check the arguments, call down, nothing else. */
#include "api/pool.h"

#include "base/alloc.h"
#include "base/cpus.h"
#include "base/error.h"
#include "sched/scope.h"
#include "sync/lock.h"

/* The pools there are, so that a second shutdown is told from a first one. */
static tp_lock pools_lock;
static threadpool_t *pools;

static bool options_valid(const threadpool_options *o) {
  return o->workers >= 0 && o->workers <= THREADPOOL_MAX_WORKERS && o->blocking >= 0 &&
         o->blocking <= THREADPOOL_MAX_BLOCKING && o->park_timeout_ms >= 0 && o->drain_ms >= -1;
}

static void destroy(threadpool_t *pool) {
  tp_reactor_free(pool->reactor); /* first: its callbacks wake tasks */
  if (pool->sched) tp_sched_stop(pool->sched);
  if (pool->tasks) tp_tasks_free(pool->tasks);
  if (pool->sched) tp_sched_free(pool->sched);
  tp_free(pool);
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
      tp_lock_acquire(&pools_lock);
      pool->next = pools;
      pools = pool;
      tp_lock_release(&pools_lock);
    } else {
      destroy(pool);
      pool = NULL;
    }
  }
  if (error) *error = code;
  return pool;
}

static bool take_from_list(threadpool_t *pool) {
  tp_lock_acquire(&pools_lock);
  threadpool_t **p = &pools;
  while (*p && *p != pool) p = &(*p)->next;
  bool there = *p != NULL;
  if (there) *p = pool->next;
  tp_lock_release(&pools_lock);
  return there;
}

int threadpool_shutdown(threadpool_t *pool) {
  tp_worker *me = tp_self();
  if (pool && me && me->sched == pool->sched) return ERR_WRONG_THREAD;
  if (!pool || !take_from_list(pool)) return ERR_INVALID_ARGUMENT;
  /* Seq-cst against enter(): either it sees closing, or we see its call and wait for it. */
  tp_store(&pool->closing, true, seq_cst);
  while (tp_load(&pool->calls, seq_cst) > 0) sched_yield();
  tp_tasks_drain(pool->tasks, tp_now_ns() + (uint64_t)pool->drain_ms * TP_NS_PER_MS);
  destroy(pool);
  return 0;
}

static bool enter(threadpool_t *pool) {
  tp_add(&pool->calls, 1, seq_cst);
  if (tp_likely(!tp_load(&pool->closing, seq_cst))) return true;
  tp_sub(&pool->calls, 1, release);
  return false;
}

static void leave(threadpool_t *pool) {
  tp_sub(&pool->calls, 1, release); /* the last touch of the pool */
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
  return pool ? (int)pool->sched->workers : 0;
}

static void add_counters(threadpool_counters *out, const tp_counters *c) {
#define ADD(name, text)                                                                            \
  out->name += tp_load(&c->name, relaxed); /* a recent value is what is promised */
  THREADPOOL_COUNTERS(ADD)
#undef ADD
}

int threadpool_stats(threadpool_t *pool, int index, threadpool_counters *out) {
  if (!pool || !out || index < -1 || index > (int)pool->sched->workers) return ERR_INVALID_ARGUMENT;
  tp_sched *s = pool->sched;
  *out = (threadpool_counters){0};
  if (index >= 0) {
    add_counters(out, &s->seats[index].count);
    return 0;
  }
  for (unsigned i = 0; i <= s->workers; i++) add_counters(out, &s->seats[i].count);
  add_counters(out, &s->outside);
  return 0;
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
