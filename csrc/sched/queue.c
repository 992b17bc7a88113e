#include "sched/queue.h"

void tp_inlet_init(tp_inlet *in, unsigned number) {
  in->number = number;
  for (int p = 0; p < TP_PRIORITIES; p++) in->of[p].inlet = in;
}

static void put_last(tp_arrivals *a, tp_work *work) {
  tp_pieces *p = &a->pieces;
  unsigned at = p->length % TP_BATCH_MOST; /* its place in its piece */
  work->next = work->jump = NULL;
  if (at > 0)
    a->newest->next = work;
  else if (p->last)
    p->last->jump = work;
  else
    p->first = work;
  if (at == 0) p->last = work;
  tp_work **recent = &a->recent[p->length % TP_AHEAD];
  /* For the walk. The first of a piece needs its jump for the next piece. */
  if (p->length >= TP_AHEAD && at != TP_AHEAD) (*recent)->jump = work;
  *recent = work;
  a->newest = work;
  p->length++;
}

void tp_queue_put(tp_queue *q, tp_inlet *in, tp_priority priority, tp_work *work) {
  tp_arrivals *a = &in->of[priority];
  put_last(a, work);
  if (a->listed) return;
  a->listed = true;                                /* G5 */
  tp_arrivals *top = tp_load(&q->listed, relaxed); /* a guess, the CAS checks it */
  do a->next = top;
  while (!tp_cas_weak(&q->listed, &top, a, seq_cst)); /* S3; pairs with the swap in take_listed */
}

/* Lock of the queue held. */
static void append(tp_queue *q, tp_pieces p) {
  if (!p.first) return;
  tp_add(&q->length, p.length, relaxed); /* G3 */
  if (tp_load(&q->first, relaxed))       /* under the lock */
    q->last->jump = p.first;
  else
    tp_store(&q->first, p.first, relaxed); /* G3 */
  q->last = p.last;
}

/* Lock of the queue held: append what has arrived, the inlet that was listed first before the others. */
static void take_listed(tp_queue *q) {
  if (!tp_load(&q->listed, relaxed)) return; /* relaxed: empty is what anybody may see (G3) */
  tp_arrivals *a = tp_swap(&q->listed, NULL, acquire), *oldest = NULL; /* pairs with tp_queue_put */
  for (tp_arrivals *next; a; a = next) {
    next = a->next;
    a->next = oldest;
    oldest = a;
  }
  for (tp_arrivals *next; oldest; oldest = next) {
    next = oldest->next; /* before somebody lists it again */
    tp_lock_acquire(&oldest->inlet->lock);
    append(q, oldest->pieces);
    oldest->pieces = (tp_pieces){0};
    oldest->listed = false; /* G5 */
    tp_lock_release(&oldest->inlet->lock);
  }
}

void tp_queue_append(tp_queue *q, tp_chain *chain) {
  tp_pieces p = {chain->first, chain->first, chain->length};
  size_t n = 0;
  for (tp_work *work = chain->first, *next; work; work = next) {
    next = work->next;
    work->jump = NULL;
    if (++n % TP_BATCH_MOST != 0 || !next) continue;
    work->next = NULL;
    p.last->jump = next;
    p.last = next;
  }
  *chain = (tp_chain){0};
  tp_lock_acquire(&q->lock);
  append(q, p);
  tp_lock_release(&q->lock);
}

/* Lock of the queue held: the list begins with `head` now, and no longer with `old`. */
static void begin_with(tp_queue *q, tp_work *head, tp_work *old) {
  tp_store(&q->first, head, relaxed); /* G3 */
  if (q->last == old) q->last = head;
}

size_t tp_queue_take(tp_queue *q, unsigned workers, unsigned most, tp_chain *batch) {
  tp_lock_acquire(&q->lock);
  if (tp_load(&q->length, relaxed) < (size_t)workers * TP_BATCH_MOST) take_listed(q);
  size_t share = (tp_load(&q->length, relaxed) + workers - 1) / workers;
  if (share > most) share = most;
  tp_work *head = tp_load(&q->first, relaxed);
  if (head && share >= TP_BATCH_MOST) {
    begin_with(q, head->jump, head);
  } else if (head) { /* only part of the piece */
    tp_work *end = head;
    for (size_t n = 1; n < share && end->next; n++) end = end->next;
    tp_work *rest = end->next;
    end->next = NULL;
    if (rest) rest->jump = head->jump;
    begin_with(q, rest ? rest : head->jump, head);
  }
  bool more = tp_load(&q->first, relaxed);
  tp_lock_release(&q->lock);

  batch->first = head;
  for (; head; head = head->next) {
    tp_prefetch(head->jump);
    batch->last = head;
    batch->length++;
  }
  size_t left = tp_sub(&q->length, batch->length, relaxed) - batch->length;
  return !more ? 0 : left ? left : 1; /* the hint may be behind */
}
