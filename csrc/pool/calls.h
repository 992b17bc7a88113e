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
  tp_slab slab;
  TP_ALIGNED _Atomic uint32_t pending; /* V4 */
  threadpool_queue *queue;             /* of requests that name no other */
  _Atomic bool closing;                /* nobody can fetch any more */
  _Atomic size_t orphans;              /* V5 */
  shard shards[SHARDS];
};

/* calls.c */

/* [any] NULL: out of memory. What is in it is as its last user left it. */
task_t *tp_call_take(tp_calls *cs);
/* [lock held] V3 */
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
