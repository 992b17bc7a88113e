/* pool.h - what a threadpool_t is. Depends on: sched/, task/, io/. Used by: api/, the tests and benchmarks. */
#ifndef TP_API_POOL_H
#define TP_API_POOL_H

#include "io/reactor.h"
#include "pool/call.h"
#include "pool/plugin.h"
#include "task/task.h"
#include "threadpool.h"

struct threadpool {
  threadpool_t *next; /* in the list of handles */
  tp_sched *sched;
  tp_tasks *tasks;
  tp_reactor *reactor; /* starts its thread on first use */
  tp_calls *requests;
  tp_plugins *plugins; /* NULL: none */
  int drain_ms;
  unsigned made_in; /* constant: tp_generation */
  /* Whoever makes it true ends the pool: a shutdown, or the exit of the process. True in the child of a fork. */
  _Atomic bool closing;
  bool ended_by_exit; /* [whoever exits] */
  _Atomic bool over;  /* its tasks have ended, and it is about to be freed */
  _Atomic int calls;  /* from outside, that have not returned */
};
_Static_assert(sizeof(threadpool_t) <= TP_CACHE_LINE, "a handle is never freed");

/* [any] False: it is closed (tp_refused says why). Until tp_leave it stays. */
bool tp_enter(threadpool_t *pool);
/* [any] The same for what its tasks wait for, so also while it closes. */
bool tp_enter_late(threadpool_t *pool);
void tp_leave(threadpool_t *pool);

/* [any] tp_say of why tp_enter has refused: ERR_FORKED or ERR_SHUTDOWN. */
int tp_refused(const threadpool_t *pool);

#endif
