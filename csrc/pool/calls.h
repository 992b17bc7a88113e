/* calls.h - what the calls of a pool share, and what calls.c, call.c and deliver.c have of each other.
 *
 * Depends on: pool/call.h. Used by: those three, and tests that look at the records.
 */
#ifndef TP_POOL_CALLS_H
#define TP_POOL_CALLS_H

#include "pool/call.h"

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
  tp_blocks *blocks;
  TP_ALIGNED _Atomic uint32_t pending; /* V4 */
  threadpool_queue *queue;             /* of requests that name no other */
  _Atomic bool closing;                /* nobody can fetch any more */
  _Atomic size_t orphans;              /* V5 */
  shard shards[SHARDS];
};

/* calls.c */

/* [any] Take up to n records; returns how many, less than n: out of memory. What is in them is as their last users left
 * it. */
size_t tp_calls_take(tp_calls *cs, task_t **out, size_t n);
/* [who took them] Give them back as they are. */
void tp_calls_give(tp_calls *cs, task_t **calls, size_t n);
/* [who has the final entry, lock held] V3 */
void tp_call_give(task_t *call);
/* [any] One owner less; the last one frees the slab (V5). */
void tp_calls_let_go(tp_calls *cs);

/* call.c */

/* [any] Decode and start it: by an updater, or by who submits. */
void tp_call_open(tp_letter *letter);

/* The call whose handler runs on this thread; NULL: none. */
extern _Thread_local task_t *tp_call_current __attribute__((tls_model("initial-exec")));

/* deliver.c */

/* [any] Locks the call with this id; NULL: there is none whose final entry was not fetched yet. */
task_t *tp_call_find(tp_calls *cs, uint64_t id);
/* [runner] The final entry is complete: it goes to whom it belongs. */
void tp_call_deliver(task_t *call);
/* [who has the entry] Its data goes back to where it came from. */
void tp_call_release(tp_entry *e);
/* [lock held] The final entry goes to somebody (V4). */
tp_entry *tp_call_hand_over(task_t *call);
/* [lock held] */
void tp_call_drop_partials(task_t *call);
/* [lock held] There is room for another partial entry, or nobody wants them any more. */
void tp_call_tell_emitter(task_t *call);
/* [lock held] V6: its handler, if it waits for another call, looks whether it is to end. */
void tp_call_tell_waiting(task_t *call);

#endif
