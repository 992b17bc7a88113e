/* completions.h - a queue of result entries that one program, or one Lua state, drains in batches.
 *
 * A pool has one of its own; requests of any pool can name another. Depends on: pool/call.h. Used by: pool/, api/, lua/.
 *
 * N1  Push is a CAS on a stack of entries; take takes it whole and reverses it, so the order is that of the pushes.
 * N2  Who pushes onto an empty stack tells whoever waits: writes the descriptor, opens the latch, calls `notify`. It
 *     looks for them after the push (seq-cst), they look at the stack after they have said that they wait: one of the
 *     two sees the other.
 * N3  An entry's record stays until the entry is freed: a record that is done when its pool goes, and lies in a queue
 *     that is not the pool's, keeps the slab like one that was fetched (V5).
 * N4  `expected`, where it is counted (in all but the one of a pool), is how many requests have still to push their final
 *     entry, and to look for who waits: at 0 nobody touches the queue but its owner. threadpool_queue_free waits for that.
 * N5  An entry of no call is somebody's notice (lua/channel.h): it is handed out as it is.
 */
#ifndef TP_POOL_COMPLETIONS_H
#define TP_POOL_COMPLETIONS_H

#include "pool/call.h"

struct threadpool_queue {
  TP_ALIGNED _Atomic(tp_entry *) stack; /* newest first, taken whole */
  _Atomic int event_fd;                 /* -1: nobody has asked for it */
  tp_latch latch;                       /* of who blocks in tp_completions_wait */
  void (*notify)(void *arg);            /* constant; NULL: nobody is to be told so */
  void *notify_arg;
  TP_ALIGNED tp_lock lock; /* guards `ready` and the making of event_fd */
  tp_entry *ready;         /* taken from the stack, oldest first */
  _Atomic bool more;       /* `ready` is not empty */
  bool spins;              /* [who waits] the last wait was short */
  bool counted;            /* constant: N4 */
  TP_ALIGNED _Atomic size_t expected;
};

/* [any] NULL: out of memory. notify (may be NULL) is called by who pushes, whatever thread that is: it must not
 * block, and not take. */
threadpool_queue *tp_completions_new(void (*notify)(void *arg), void *arg);

/* [any, nobody uses it any more] Frees what nobody took. */
void tp_completions_free(threadpool_queue *q);

/* [any] */
void tp_completions_push(threadpool_queue *q, tp_entry *e);
size_t tp_completions_take(threadpool_queue *q, result_t **out, size_t n);
/* [one at a time] Until there is something (1), the time is over (0), or a signal came (ERR_BUSY). */
int tp_completions_wait(threadpool_queue *q, uint64_t deadline_ns);
int tp_completions_fd(threadpool_queue *q);

/* [any] Whether there is something: a glance. */
static inline bool tp_completions_some(threadpool_queue *q) {
  return tp_load(&q->stack, seq_cst) || tp_load(&q->more, relaxed); /* seq_cst: N2 */
}

#endif
