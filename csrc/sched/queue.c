#include "sched/queue.h"

/* The whole stack as a chain, oldest first. */
static tp_chain take_injected(tp_queue *q) {
  tp_chain c = {0};
  if (!tp_load(&q->injected, relaxed)) return c; /* relaxed: empty is what anybody may see (G3) */
  tp_work *work = tp_swap(&q->injected, NULL, acquire); /* pairs with the CAS in tp_queue_inject */
  c.last = work;
  while (work) {
    tp_work *next = work->next;
    work->next = c.first;
    c.first = work;
    c.length++;
    work = next;
  }
  return c;
}

static void append_locked(tp_queue *q, tp_chain *chain) {
  tp_chain_join(&q->list, chain);
  tp_store(&q->length, q->list.length, relaxed); /* G3 */
}

void tp_queue_append(tp_queue *q, tp_chain *chain) {
  tp_lock_acquire(&q->lock);
  append_locked(q, chain);
  tp_lock_release(&q->lock);
}

size_t tp_queue_take(tp_queue *q, unsigned workers, unsigned most, tp_chain *batch) {
  tp_lock_acquire(&q->lock);
  tp_chain fresh = take_injected(q); /* under the lock, so that two takers keep the order */
  append_locked(q, &fresh);
  size_t share = (q->list.length + workers - 1) / workers;
  if (share > most) share = most;
  while (share-- > 0) tp_chain_append(batch, tp_chain_take(&q->list));
  size_t left = q->list.length;
  tp_store(&q->length, left, relaxed);
  tp_lock_release(&q->lock);
  return left;
}
