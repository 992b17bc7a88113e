/* scope.h - scopes, calls from outside, broadcast. The scope's own functions are public (threadpool.h).
 *
 * Depends on: sched/fork.h, sched/post.h. Used by: api/.
 */
#ifndef TP_SCHED_SCOPE_H
#define TP_SCHED_SCOPE_H

#include "sched/sched.h"

/* [any] Run fn(worker, arg) in the pool and wait: inside it directly, else in the main seat, or, if that is
 * taken, as injected work. */
void tp_call(tp_sched *s, threadpool_fn fn, void *arg);

/* [any] Run fn once in every seat but the main one; wait. 0 or ERR_MALLOC_FAILED. */
int tp_broadcast(tp_sched *s, threadpool_fn fn, void *arg);

/* [any, once nobody sits in it] Free what the seat keeps for spawns. */
void tp_spawned_free(tp_worker *w);

/* [any] Block until the latch is set, by somebody who wakes it. */
void tp_wait_outside(tp_latch *done);

#endif
