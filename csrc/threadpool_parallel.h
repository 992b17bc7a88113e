/* threadpool_parallel.h - fork-join work: calls, join, scopes, broadcast, loops over ranges, sort.
 *
 * Included by threadpool.h. Fork-join work is done by functions of type threadpool_fn, which get the worker they
 * run on and hand it to everything they call here. The fastest way to fork, for C programs, is in
 * threadpool_fork.h; everything here works from C++ and by an FFI as well.
 */
#ifndef THREADPOOL_PARALLEL_H
#define THREADPOOL_PARALLEL_H

#include "threadpool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- fork and join ----------------------------------------------------------------------------- */

/* [any] Run fn(worker, arg) in the pool and wait for its end. The calling thread runs it itself in the
 * pool's main seat if that is free; else a worker does. ERR_SHUTDOWN: the pool is closing. */
THREADPOOL_API int threadpool_call(threadpool_t *pool, threadpool_fn fn, void *arg);

/* [any] The worker this thread is just now, or NULL. */
THREADPOOL_API threadpool_worker *threadpool_current(void);

/* [W] Run both, perhaps at the same time; return when both are done. If nobody is free to help, b simply
 * comes after a. ERR_WRONG_THREAD: w is not the worker of this thread, nothing was run. */
THREADPOOL_API int threadpool_join(threadpool_worker *w, threadpool_fn a, void *a_arg,
                                   threadpool_fn b, void *b_arg);

/* A scope: any number of spawns, all of them done when threadpool_scope_end returns. Every spawn is
 * offered to the other workers at once. Lives on the stack; its fields are the library's. */
typedef struct threadpool_scope {
  threadpool_worker *home;
  int64_t pending;
  uint32_t latch;
  uint32_t guard;
} threadpool_scope;

/* [W] Open a scope on this worker. ERR_WRONG_THREAD as above. */
THREADPOOL_API int threadpool_scope_begin(threadpool_worker *w, threadpool_scope *scope);
/* [W, any worker that runs inside the scope] When memory is out, fn is run before this returns. */
THREADPOOL_API int threadpool_spawn(threadpool_worker *w, threadpool_scope *scope, threadpool_fn fn,
                                    void *arg);
/* [W, the one that began] Help, and return when everything spawned has run. */
THREADPOOL_API int threadpool_scope_end(threadpool_worker *w, threadpool_scope *scope);

/* [any] Run fn once on every worker thread, and return when all have. From inside the pool too. Each
 * worker runs it when it is done with what it is doing. */
THREADPOOL_API int threadpool_broadcast(threadpool_t *pool, threadpool_fn fn, void *arg);

/* --- loops over ranges ------------------------------------------------------------------------- */
/* All [W]. The range is split only when somebody is there to take a part, so a skewed loop balances
 * itself; `grain` is the least piece, 0 = chosen from the length. ERR_INVALID_ARGUMENT: a NULL function
 * or a negative grain. An empty range is fine. */

/* body(w, begin, end, arg) for pieces that cover [begin, end) exactly once. */
typedef void (*threadpool_range_fn)(threadpool_worker *w, int64_t begin, int64_t end, void *arg);
THREADPOOL_API int threadpool_for(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                                  threadpool_range_fn body, void *arg);

/* Fold a range. `result` holds the identity when called (say 0 for a sum) and the answer afterwards;
 * it is copied, `size` bytes, for each piece that is split off (at most 1024). fold adds [begin, end)
 * to acc; merge adds `right` to acc. The order is kept, so merge need only be associative. */
typedef struct threadpool_reducer {
  size_t size;
  void (*fold)(threadpool_worker *w, int64_t begin, int64_t end, void *acc, void *arg);
  void (*merge)(void *acc, const void *right, void *arg);
} threadpool_reducer;
THREADPOOL_API int threadpool_reduce(threadpool_worker *w, int64_t begin, int64_t end,
                                     int64_t grain, const threadpool_reducer *reducer, void *result,
                                     void *arg);

/* out[i] = fn(in[i]) for n elements of in_size and out_size bytes. */
typedef void (*threadpool_map_fn)(threadpool_worker *w, const void *in, void *out, void *arg);
THREADPOOL_API int threadpool_map(threadpool_worker *w, const void *in, size_t in_size, void *out,
                                  size_t out_size, int64_t n, int64_t grain, threadpool_map_fn fn,
                                  void *arg);

/* The lowest i of [begin, end) for which match is true, in *found; `end` if there is none. Pieces beyond
 * a match already found are not looked at. */
typedef bool (*threadpool_match_fn)(threadpool_worker *w, int64_t i, void *arg);
THREADPOOL_API int threadpool_find(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain,
                                   threadpool_match_fn match, void *arg, int64_t *found);

/* Sort n elements of `size` bytes: a stable merge sort that needs as much memory again
 * (ERR_MALLOC_FAILED without it; nothing was moved). compare as for qsort. */
typedef int (*threadpool_compare_fn)(const void *a, const void *b, void *arg);
THREADPOOL_API int threadpool_sort(threadpool_worker *w, void *base, size_t n, size_t size,
                                   threadpool_compare_fn compare, void *arg);
/* The same for plain numbers, several times faster. NaNs come last. */
THREADPOOL_API int threadpool_sort_i64(threadpool_worker *w, int64_t *base, size_t n);
THREADPOOL_API int threadpool_sort_u64(threadpool_worker *w, uint64_t *base, size_t n);
THREADPOOL_API int threadpool_sort_f64(threadpool_worker *w, double *base, size_t n);

#ifdef __cplusplus
}
#endif

#endif
