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

/* --- spawns and crashes (docs/CRASHES.md, X7). `job` is one without an owner. */
/* [any] The segment its scope was opened in; NULL: it was not guarded. */
tp_segment *tp_spawn_segment(threadpool_job *job);
/* [W] Taken from the deque: if its scope is crashed, end it without running it. */
bool tp_spawn_discard(tp_worker *w, threadpool_job *job);
/* [W] Else put it first on this list, and the whole list back into the deque. */
void tp_spawn_keep(threadpool_job *job, threadpool_job **list);
void tp_spawn_again(tp_worker *w, threadpool_job *list);
/* [W] It crashed while it ran. */
void tp_spawn_crashed(threadpool_scope *scope, const tp_crash *crash);

/* [any] Block until the latch is set, by somebody who wakes it. */
void tp_wait_outside(tp_latch *done);

#endif
