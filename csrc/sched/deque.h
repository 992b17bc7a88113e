/* deque.h - a worker's forks: Chase-Lev at the public end, plain memory at the private one.
 *
 * The layout and the inline paths are in threadpool_fork.h. Depends on: base/. Used by: sched/.
 *
 * D1  top <= split <= bottom, but for the moment in which the owner pops the last public job.
 * D2  [top, split) is public: a job is taken out of it by the CAS that moves top over it, or by the owner
 *     lowering split. Only the last one is contended; the owner then uses the same CAS.
 * D3  [split, bottom) is the owner's: push and pop are plain loads and stores.
 * D4  A slot is written before split passes it (release) and read by those who saw that split (acquire).
 * D5  Slots that were replaced by larger ones are kept until the deque is freed: a thief may hold them, and
 *     what it reads there is right, since nobody writes them any more.
 * D6  `want` is a hint, set while fewer forks wait than `enough`: by the owner's pop and by a thief's steal;
 *     the owner's fork computes it anew. A thief's may be overwritten by a fork that has not yet seen its
 *     steal, so a thief that finds nothing public sets it again.
 *
 * Cost: private push and pop no atomic operation; exposing a job a release store (and the poster's fence);
 * public pop one fence, and one CAS for the last; steal one fence and one CAS.
 */
#ifndef TP_SCHED_DEQUE_H
#define TP_SCHED_DEQUE_H

#include "base/atomic.h"
#include "threadpool_fork.h"

/* [any] ERR_MALLOC_FAILED or 0. `keep`: how many jobs forks keep public; with one
 * more private, further forks are elided: with k waiting, depth^k / k! forks of a tree are pushed. */
int tp_deque_init(threadpool_worker *w, unsigned keep);
/* [any, once nobody uses it] */
void tp_deque_free(threadpool_worker *w);

/* [W] Room for one more; false: out of memory. */
bool tp_deque_make_room(threadpool_worker *w);

/* [W] Push without a look at threadpool_fork's exposure. There must be room. */
void tp_deque_push(threadpool_worker *w, threadpool_job *job);

/* [W] Make the oldest private jobs public until `count` are; returns how many were exposed. */
unsigned tp_deque_expose(threadpool_worker *w, int64_t count);

/* [W] The newest job, or NULL. */
threadpool_job *tp_deque_pop(threadpool_worker *w);

/* [thief] The oldest public job, or NULL: empty, or somebody was faster. */
threadpool_job *tp_deque_steal(threadpool_worker *victim);

/* [thief] The same in two steps, for who has to know whose job it is before it takes it: look (the job is not ours
 * yet and must not be touched), take. While nobody has taken it, job `at` stays what it was when looked at: it is
 * public, and leaves the deque only by the CAS that moves top over it (D2). */
threadpool_job *tp_deque_look(threadpool_worker *victim, int64_t *at);
bool tp_deque_take(threadpool_worker *victim, int64_t at);

/* [any] Whether public jobs were seen. Callers that must not miss one have a fence before. */
static inline bool tp_deque_any(threadpool_worker *w) {
  return tp_load(&w->top, acquire) < tp_load(&w->split, acquire);
}

/* [thief] The same; if there is none, the owner is told that one is wanted (D6). */
static inline bool tp_deque_offers(threadpool_worker *w) {
  if (tp_deque_any(w)) return true;
  if (!tp_load(&w->want, relaxed)) tp_store(&w->want, 1, relaxed);
  return false;
}

#endif
