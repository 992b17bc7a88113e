#include "sched/deque.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"

enum { FIRST_SIZE = 64 };

static threadpool_slots *slots_new(int64_t size, threadpool_slots *older) {
  threadpool_slots *s = tp_alloc(sizeof *s + (size_t)size * sizeof s->job[0]);
  if (!s) return NULL;
  s->mask = size - 1;
  s->older = older;
  return s;
}

int tp_deque_init(threadpool_worker *w, unsigned keep) {
  threadpool_slots *s = slots_new(FIRST_SIZE, NULL);
  if (!s) return ERR_MALLOC_FAILED;
  tp_store(&w->top, 0, relaxed); /* nobody else knows the worker yet */
  tp_store(&w->split, 0, relaxed);
  tp_store(&w->slots, s, relaxed);
  w->bottom = 0;
  w->limit = FIRST_SIZE;
  w->keep = keep;
  w->enough = keep + 1;
  tp_store(&w->want, 1, relaxed);
  w->own = s;
  return 0;
}

void tp_deque_free(threadpool_worker *w) {
  for (threadpool_slots *s = w->own, *older; s; s = older) {
    older = s->older;
    tp_free(s);
  }
  w->own = NULL;
}

bool tp_deque_make_room(threadpool_worker *w) {
  int64_t top = tp_load(&w->top, relaxed); /* an old value only makes us grow early */
  int64_t size = w->own->mask + 1;
  w->limit = top + size;
  if (w->bottom < w->limit) return true;
  threadpool_slots *s = slots_new(2 * size, w->own);
  if (!s) return false;
  for (int64_t i = top; i < w->bottom; i++)
    tp_store(&s->job[i & s->mask], tp_load(&w->own->job[i & w->own->mask], relaxed), relaxed);
  w->own = s;
  tp_store(&w->slots, s,
           release); /* pairs with the acquire in tp_deque_look: the copies are seen */
  w->limit = top + 2 * size;
  return true;
}

void tp_deque_push(threadpool_worker *w, threadpool_job *job) {
  TP_ASSERT(w->bottom < w->limit, "room was made");
  tp_store(&w->own->job[w->bottom & w->own->mask], job, relaxed); /* D4: published with split */
  w->bottom++;
}

unsigned tp_deque_expose(threadpool_worker *w, int64_t count) {
  int64_t split = tp_load(&w->split, relaxed); /* our own */
  int64_t top =
      tp_load(&w->top, relaxed); /* an old one exposes fewer: the next fork does the rest */
  int64_t to = count < w->bottom - top ? top + count : w->bottom;
  if (to <= split) return 0;
  tp_store(&w->split, to, release); /* D4; pairs with the acquire in tp_deque_look */
  return (unsigned)(to - split);
}

threadpool_job *tp_deque_pop(threadpool_worker *w) {
  int64_t b = w->bottom - 1;
  int64_t split = tp_load(&w->split, relaxed); /* our own */
  tp_store(&w->want, 1, relaxed);              /* D6: one less waits */
  if (b >= split) {                            /* D3 */
    w->bottom = b;
    return tp_load(&w->own->job[b & w->own->mask], relaxed);
  }
  if (tp_load(&w->top, relaxed) > b) return NULL; /* top only grows: empty */
  TP_ASSERT(split == w->bottom, "D1");
  /* D2, the owner's side of Chase and Lev: lower split, then look at top. Both sides store, fence, load:
   * either the thief sees the lowered split, or we see its top.
   *   owner                     thief
   *   split = b                 t = top
   *   fence     - pairs with -  fence
   *   t = top                   s = split; CAS top t -> t + 1 */
  tp_store(&w->split, b, relaxed);
  tp_fence();
  int64_t t = tp_load(&w->top, relaxed); /* ordered by the fence */
  threadpool_job *job = NULL;
  if (t <= b) job = tp_load(&w->own->job[b & w->own->mask], relaxed);
  if (t < b) { /* not the last: no thief gets here any more */
    w->bottom = b;
    return job;
  }
  /* The last one: whoever moves top has it. Seq-cst, in one order with the thieves' CAS. */
  if (t == b && !tp_cas(&w->top, &t, b + 1, seq_cst)) job = NULL;
  tp_store(&w->split, b + 1, relaxed); /* empty again: nothing is published by it */
  w->bottom = b + 1;
  return job;
}

threadpool_job *tp_deque_look(threadpool_worker *victim, int64_t *at) {
  int64_t t = tp_load(&victim->top, acquire);   /* pairs with the CAS that moved it */
  tp_fence();                                   /* see tp_deque_pop */
  int64_t s = tp_load(&victim->split, acquire); /* D4 */
  if (t >= s) return NULL;
  threadpool_slots *slots =
      tp_load(&victim->slots, acquire); /* pairs with tp_deque_make_room (D5) */
  *at = t;
  return tp_load(&slots->job[t & slots->mask], relaxed); /* the CAS validates it */
}

bool tp_deque_take(threadpool_worker *victim, int64_t at) {
  if (!tp_cas(&victim->top, &at, at + 1, seq_cst)) return false;
  tp_store(&victim->want, 1, relaxed); /* D6 */
  return true;
}

threadpool_job *tp_deque_steal(threadpool_worker *victim) {
  int64_t at;
  threadpool_job *job = tp_deque_look(victim, &at);
  return job && tp_deque_take(victim, at) ? job : NULL;
}
