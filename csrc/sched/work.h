/* work.h - what queues hold: a link and a function. Tasks and injected calls embed it.
 *
 * Depends on: nothing. The queues know nothing else about what they carry.
 */
#ifndef TP_SCHED_WORK_H
#define TP_SCHED_WORK_H

#include <stddef.h>

typedef struct tp_worker tp_worker;
typedef struct tp_work tp_work;

struct tp_work {
  tp_work *next;                       /* of the queue it is in; a ring does not use it */
  void (*run)(tp_worker *, tp_work *); /* the work's memory is the function's from then on */
  tp_work *jump;                       /* in the global queue (sched/queue.h) */
};

/* A chain, first to last, with its length. */
typedef struct tp_chain {
  tp_work *first, *last;
  size_t length;
} tp_chain;

static inline void tp_chain_append(tp_chain *c, tp_work *work) {
  work->next = NULL;
  if (c->last)
    c->last->next = work;
  else
    c->first = work;
  c->last = work;
  c->length++;
}

static inline tp_work *tp_chain_take(tp_chain *c) {
  tp_work *work = c->first;
  if (!work) return NULL;
  c->first = work->next;
  if (!c->first) c->last = NULL;
  c->length--;
  return work;
}

#endif
