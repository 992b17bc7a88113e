/* calls.c - the calls of a pool: their records, and what they share. Rules V3 and V5: call.h. */
#include "pool/calls.h"

#include "base/alloc.h"
#include "base/process.h"
#include "pool/completions.h"

static shard *shard_of(tp_calls *cs) {
  static _Atomic unsigned threads;
  static _Thread_local unsigned number __attribute__((tls_model("initial-exec")));
  if (tp_unlikely(!number)) number = tp_add(&threads, 1, relaxed) + 1; /* only to spread them */
  return &cs->shards[number % SHARDS];
}

size_t tp_calls_take(tp_calls *cs, task_t **out, size_t n) {
  shard *s = shard_of(cs);
  size_t got = 0;
  int failed = 0;
  do {
    tp_lock_acquire(&s->lock);
    while (got < n && (out[got] = (task_t *)tp_slab_take(&cs->slab, &s->cache))) got++;
    tp_lock_release(&s->lock);
  } while (tp_unlikely(!got) && tp_try_again(&failed));
  return got;
}

void tp_calls_give(tp_calls *cs, task_t **calls, size_t n) {
  shard *s = shard_of(cs);
  tp_lock_acquire(&s->lock);
  while (n > 0) tp_slab_give(&cs->slab, &s->cache, &calls[--n]->record);
  tp_lock_release(&s->lock);
}

void tp_call_give(task_t *call) {
  call->waiter = NULL; /* one that has not yet woken up looks for itself here */
  tp_store(&call->stage, TP_CALL_FREE, relaxed); /* the lock is held */
  tp_calls_give(call->calls, &call, 1);
}

static void free_records(tp_calls *cs) {
  tp_blocks_free(cs->blocks);
  for (int i = 0; i < SHARDS; i++) tp_slab_cache_free(&cs->shards[i].cache);
  tp_slab_free(&cs->slab);
}

/* Have memory for so many from the start. */
static bool make_records(tp_calls *cs, uint32_t n) {
  task_t *made = NULL, *call;
  uint32_t i = 0;
  for (; i < n && tp_calls_take(cs, &call, 1); i++) {
    call->state = made;
    made = call;
  }
  for (; made; made = call) {
    call = made->state;
    tp_calls_give(cs, &made, 1);
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
  tp_slab_init(&cs->slab, sizeof(task_t), 0);
  cs->blocks = tp_blocks_new();
  cs->ops = tp_ops_new();
  cs->symbols = tp_symbols_new();
  cs->updaters = tp_updaters_new(tasks, tp_call_open);
  cs->queue = tp_completions_new(NULL, NULL);
  if (cs->blocks && cs->ops && cs->symbols && cs->updaters && cs->queue &&
      make_records(cs, options->initial))
    return cs;
  free_records(cs);
  tp_updaters_free(cs->updaters);
  tp_ops_free(cs->ops);
  if (cs->symbols) tp_symbols_free(cs->symbols);
  tp_completions_free(cs->queue);
  tp_free(cs);
  return NULL;
}

void tp_calls_let_go(tp_calls *cs) {
  if (tp_sub(&cs->orphans, 1, acq_rel) > 1) return; /* the last one sees what the others did */
  free_records(cs);
  tp_free(cs);
}

void tp_calls_close(tp_calls *cs) {
  /* Relaxed: read under the call's lock, by who has not been seen below to wait. */
  tp_store(&cs->closing, true, relaxed);
  uint32_t used = tp_slab_used(&cs->slab);
  for (uint32_t i = 0; i < used; i++) {
    task_t *call = (task_t *)tp_slab_at(&cs->slab, i);
    tp_lock_acquire(&call->lock);
    /* A FREE one may just be filled in (V1). */
    if (tp_load(&call->stage, relaxed) == TP_CALL_LIVE) {
      tp_call_tell_emitter(call);
      tp_call_tell_waiting(call);
    }
    tp_lock_release(&call->lock);
  }
}

void tp_calls_free(tp_calls *cs) {
  tp_completions_free(cs->queue);     /* first: what is left in another one is N3's */
  tp_store(&cs->orphans, 1, relaxed); /* ours, until all records have been looked at */
  uint32_t used = tp_slab_used(&cs->slab);
  for (uint32_t i = 0; i < used; i++) {
    task_t *call = (task_t *)tp_slab_at(&cs->slab, i);
    tp_lock_acquire(&call->lock); /* V3 */
    tp_stage stage = tp_load(&call->stage, relaxed);
    bool queued = stage == TP_CALL_DONE && call->deliver == THREADPOOL_BY_QUEUE; /* N3 */
    if (stage == TP_CALL_FETCHED || queued) {
      tp_store(&call->stage, TP_CALL_ORPHAN, relaxed);
      tp_add(&cs->orphans, 1, relaxed);
    } else if (stage == TP_CALL_DONE) {
      tp_call_drop_partials(call);
      tp_call_release(&call->result);
      tp_arena_put(&call->arena, call->text);
      call->text = NULL;
    }
    tp_lock_release(&call->lock);
  }
  tp_updaters_free(cs->updaters);
  tp_ops_free(cs->ops);
  tp_symbols_free(cs->symbols);
  tp_calls_let_go(cs);
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
threadpool_queue *tp_calls_queue(tp_calls *cs) {
  return cs->queue;
}
uint32_t tp_calls_pending(tp_calls *cs) {
  return tp_load(&cs->pending, relaxed); /* a recent one is what is promised */
}
