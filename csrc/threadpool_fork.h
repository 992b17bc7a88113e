/* threadpool_fork.h - fork and join, inline, so that a fork nobody steals costs next to nothing.
 *
 * C11 only (C++ and other languages use threadpool_join() of threadpool.h). Protocol and invariants:
 * docs/ARCHITECTURE.md, "The deque"; csrc/sched/deque.c holds the paths that are not inline.
 *
 * A worker's forks are in its deque:
 *
 *      top            split            bottom
 *       |  public      |   private      |            [top, split)    thieves may take these, oldest first
 *   ----+--------------+----------------+----        [split, bottom) plain memory of the owner
 *
 * While enough forks wait for thieves (two, or more in a larger pool), nobody wants another one:
 * threadpool_enough() is true, and a further fork may as well be a plain call:
 *
 *   long fib(threadpool_worker *w, int n) {
 *     if (n < 2) return n;
 *     if (threadpool_enough(w)) return fib(w, n - 1) + fib(w, n - 2);
 *     struct fib_call b = {n - 2, 0};                         // struct fib_call { int n; long result; };
 *     threadpool_job job;
 *     threadpool_fork(w, &job, fib_run, &b);                  // fib_run(w, arg): b->result = fib(w, b->n)
 *     long a = fib(w, n - 1);
 *     threadpool_sync(w, &job);
 *     return a + b.result;
 *   }
 *
 * Every fork is synced by the function that forked, on the same worker, before it returns. A job never
 * blocks on anything but other jobs: while A runs, B may be a plain call that comes after it.
 *
 * Cost, nobody stealing: threadpool_enough one load; fork and sync of a private job some 10 plain
 * instructions each; of a public one (the oldest few) one fence each, 8 ns.
 */
#ifndef THREADPOOL_FORK_H
#define THREADPOOL_FORK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "threadpool.h"

/* A fork. Lives on the stack of the function that forks; valid until its sync has returned. */
typedef struct threadpool_job {
  threadpool_fn fn;
  void *arg;
  threadpool_worker *owner; /* who waits for it; NULL: nobody does (spawned in a scope) */
  _Atomic uint32_t latch;   /* sync/latch.h */
} threadpool_job;

typedef struct threadpool_slots {
  int64_t mask;
  struct threadpool_slots
      *older; /* what it replaced: freed with the pool, a thief may still read it */
  _Atomic(threadpool_job *) job[];
} threadpool_slots;

/* The part of a worker that these functions need. Do not touch it otherwise. */
struct threadpool_worker {
  _Alignas(64) _Atomic int64_t top;   /* thieves and owner, by CAS */
  _Alignas(64) _Atomic int64_t split; /* the owner writes, thieves read */
  _Atomic(threadpool_slots *) slots;  /* the same */
  _Atomic uint32_t want; /* a hint: the owner clears it when enough forks wait, thieves set it */
  _Alignas(64) int64_t bottom; /* the owner's alone from here on */
  int64_t limit;               /* bottom may not reach it without a look at top */
  int64_t keep;                /* so many jobs are to be public */
  int64_t enough;              /* so many forks wait before further ones are elided */
  threadpool_slots *own;       /* == slots */
};

/* Slow paths, in the library. [W] */
THREADPOOL_API void threadpool_fork_grow(threadpool_worker *w, threadpool_job *job);
THREADPOOL_API void threadpool_fork_expose(threadpool_worker *w);
THREADPOOL_API void threadpool_sync_slow(threadpool_worker *w, threadpool_job *job);

/* [W] Whether enough forks wait for thieves: then call directly instead of forking. */
static inline bool threadpool_enough(threadpool_worker *w) {
  /* Relaxed: a hint. One that is lost to a race is given again by the next thief that finds nothing. */
  return __builtin_expect(!atomic_load_explicit(&w->want, memory_order_relaxed), 1);
}

/* [W] Let fn(worker, arg) be run by this or another worker, from now until threadpool_sync. */
static inline void threadpool_fork(threadpool_worker *w, threadpool_job *job, threadpool_fn fn,
                                   void *arg) {
  job->fn = fn;
  job->arg = arg;
  job->owner = w;
  atomic_store_explicit(&job->latch, 0, memory_order_relaxed); /* published with the slot */
  int64_t b = w->bottom;
  if (__builtin_expect(b == w->limit, 0)) {
    threadpool_fork_grow(w, job);
    return;
  }
  /* Relaxed: a thief reads the slot only after it has acquired a split beyond it. */
  atomic_store_explicit(&w->own->job[b & w->own->mask], job, memory_order_relaxed);
  w->bottom = b + 1;
  /* Relaxed: split is our own, and a stale top only delays the exposure to the next fork. */
  int64_t top = atomic_load_explicit(&w->top, memory_order_relaxed);
  atomic_store_explicit(&w->want, b + 1 - top < w->enough, memory_order_relaxed);
  if (__builtin_expect(atomic_load_explicit(&w->split, memory_order_relaxed) - top < w->keep, 0))
    threadpool_fork_expose(w);
}

/* [W] Return when the job has been run. Forks are synced newest first. */
static inline void threadpool_sync(threadpool_worker *w, threadpool_job *job) {
  int64_t b = w->bottom - 1;
  /* Relaxed: split and the slots are our own. */
  if (__builtin_expect(
          b >= atomic_load_explicit(&w->split, memory_order_relaxed) &&
              atomic_load_explicit(&w->own->job[b & w->own->mask], memory_order_relaxed) == job,
          1)) {
    w->bottom = b;
    atomic_store_explicit(&w->want, 1, memory_order_relaxed); /* one less waits */
    job->fn(w, job->arg);
    return;
  }
  threadpool_sync_slow(w, job);
}

#endif
