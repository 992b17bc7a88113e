/* threadpool.h - the public interface of libthreadpool.
 *
 * A pool is a set of worker threads. Work comes to it in two ways: as *requests*, one JSON object each, which
 * handlers carry out and whose results are fetched (here); and as fork-join functions of a C program
 * (threadpool_parallel.h, included at the end).
 *
 *   threadpool_t *pool = threadpool_create(NULL);
 *   uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\", \"args\": {\"text\": \"hello\"}}");
 *   result_t *r = threadpool_wait_result(pool, id, 5000);
 *   if (r) printf("%d %.*s\n", r->status, (int)r->data_size, (char *)r->data);
 *   threadpool_result_free(r);
 *   threadpool_shutdown(pool);
 *
 * Functions that return int return 0 (ERR_SUCCESS) or a negative code of threadpool_errors.h;
 * threadpool_error_text says what it means in general, threadpool_last_error what was wrong this time.
 * [any] may be called on any thread; [W] only on the worker that is passed; [H] only in a handler, by the thread
 * that runs it. The format of requests and results: docs/BYTECODE.md.
 *
 * NULL for a pool, a table or something to be read is ERR_INVALID_ARGUMENT, or where no code is returned what says
 * "none" (0, false, NULL); after ERR_SHUTDOWN it is the same. NULL for a place to write to means that nobody wants to
 * know where that is said, and is ERR_INVALID_ARGUMENT elsewhere. What is [H] or [W] takes a task or a worker that is
 * not NULL, and checks nothing.
 */
#ifndef THREADPOOL_H
#define THREADPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "threadpool_errors.h"

#if defined(__GNUC__)
#define THREADPOOL_API __attribute__((visibility("default")))
#else
#define THREADPOOL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a function or a structure below changes in a way that a program must be rebuilt for. */
#define THREADPOOL_ABI 5

typedef struct threadpool threadpool_t;
typedef struct threadpool_worker threadpool_worker;
typedef void (*threadpool_fn)(threadpool_worker *w, void *arg);

/* --- a pool ------------------------------------------------------------------------------------ */

enum { THREADPOOL_MAX_WORKERS = 1024, THREADPOOL_MAX_BLOCKING = 65536 };

/* All zero means: the defaults. A number out of range is refused, never made to fit.
 *
 *   threadpool_options o = {.workers = 2, .drain_ms = -1, .window = 16};
 */
typedef struct threadpool_options {
  int workers;  /* worker threads; 0 = the CPUs this process may use (affinity, cgroup quota) */
  int blocking; /* threads beyond the workers, for what blocks; 0 = 512 */
  int drain_ms; /* how long shutdown lets tasks finish before it cancels; 0 = 5000, -1 = not at all */
  int park_timeout_ms; /* look around at least this often when idle; 0 = never, nothing is ever missed */
  bool idle_yield; /* give the core away between looks, before sleeping: slower to wake */
  bool pin;        /* one CPU for each worker */

  uint32_t max_pending;       /* requests whose result is not yet fetched; 0 = 65536 */
  uint32_t max_request_bytes; /* of one request's text; 0 = 64 MiB */
  uint32_t max_depth;         /* of its nesting; 0 = 512 */
  uint32_t window; /* partial results of one request that may wait to be fetched; 0 = 64 */
  uint32_t initial_capacity; /* requests for which there is memory from the start; 0 = 256 */
} threadpool_options;

/* [any] Make a pool from a config file (docs/BYTECODE.md, config/config); NULL = defaults. NULL: it could not be
 * made, threadpool_last_error says why (file, line and the accepted values).
 *
 *   threadpool_t *pool = threadpool_create("config/config");
 *   if (!pool) fprintf(stderr, "%s\n", threadpool_last_error());
 */
THREADPOOL_API threadpool_t *threadpool_create(const char *config_path);

/* [any] Make a pool; `options` NULL = defaults; `error` may be NULL, else it gets the code.
 * NULL: ERR_INVALID_ARGUMENT (a number out of range), ERR_MALLOC_FAILED (memory, threads).
 *
 *   threadpool_options o = {.workers = 4};
 *   threadpool_t *pool = threadpool_create_with(&o, NULL);
 */
THREADPOOL_API threadpool_t *threadpool_create_with(const threadpool_options *options, int *error);

/* [any but a worker of the pool] Let what was begun finish (drain_ms), cancel the rest, join all
 * threads and free everything but the handle, of 64 bytes: calls that come late get ERR_SHUTDOWN. Results that
 * were fetched stay valid until they are freed; those that were not are gone. ERR_INVALID_ARGUMENT: NULL, or
 * already shut down; ERR_WRONG_THREAD: called from inside it; ERR_FORKED: it is a parent's. It waits for a handler that
 * never returns; only the exit of the process does not (docs/PROCESS.md: what becomes of a pool at exit and in the child
 * of a fork, where every function gives ERR_FORKED). */
THREADPOOL_API int threadpool_shutdown(threadpool_t *pool);
/* [any but a worker of the pool] The same with another drain time than the pool's own; -1: not at all. */
THREADPOOL_API int threadpool_shutdown_within(threadpool_t *pool, int drain_ms);

/* [any] Worker threads of the pool; 0 for NULL and for one that is closed. Fixed as long as it lives. */
THREADPOOL_API int threadpool_workers(threadpool_t *pool);

/* [any] "ERR_TIMEOUT", "timed out". Static text, never NULL, whatever the code. */
THREADPOOL_API const char *threadpool_error_name(int code);
THREADPOOL_API const char *threadpool_error_text(int code);
/* [any] What was wrong with the last call of this thread that failed: the thing, the place, the remedy. Never NULL,
 * "" at first; valid until this thread's next call. */
THREADPOOL_API const char *threadpool_last_error(void);
/* [any] THREADPOOL_ABI of the library that is loaded. */
THREADPOOL_API int threadpool_abi(void);

/* --- requests ---------------------------------------------------------------------------------- */

/* RESULT_LUA: the data are Lua values, for the Lua module only. */
enum { RESULT_FINAL = 1, RESULT_PARTIAL = 2, RESULT_LUA = 4 };

/* One entry of a request's results: any number of partial ones, numbered from 0, then one final one. Whoever
 * fetches it owns it. */
typedef struct result {
  uint64_t task_id; /* what submit returned */
  int32_t status;   /* 0, or a negative code */
  void *data;       /* the payload, data_size bytes; NULL if there is none */
  uint32_t data_size;
  char error_msg[256]; /* if status < 0 */
  uint32_t flags;      /* RESULT_FINAL or RESULT_PARTIAL; RESULT_LUA */
  uint64_t sequence;   /* of the entry: 0, 1, ... */
  uint64_t outer_id;   /* the request's own "task_id"; 0: it had none */
} result_t;

/* [a worker; while the pool closes, or without memory for a task, who submits] Called once for each entry; the entry
 * is the callback's, to be freed with threadpool_result_free. A crash in it is not recovered. */
typedef void (*result_callback_fn)(result_t *result, void *user_data);

/* [any] Submit a request: JSON text, copied, ending with a zero. Returns its id, below 2^53 and never used again.
 * Bad JSON gets an id as well, and an error for a result. 0: not accepted (threadpool_last_error): NULL, the pool
 * is closed, ERR_QUEUE_FULL (max_pending), ERR_MALLOC_FAILED.
 *
 *   uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\", \"args\": {\"parts\": [\"a\", \"b\"]}}");
 *   for (bool more = id != 0; more;) {
 *     result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);  // or threadpool_poll_result, now and then
 *     if (r->status < 0) fprintf(stderr, "%s\n", r->error_msg);
 *     more = r->flags & RESULT_PARTIAL;
 *     threadpool_result_free(r);
 *   }
 */
THREADPOOL_API uint64_t threadpool_submit(threadpool_t *pool, const char *json);

/* [any] The same; the results go to the callback, on a worker, instead of waiting to be fetched. 0: also for a callback
 * that is NULL. user_data is the program's, and may be NULL.
 *
 *   static void print(result_t *r, void *user_data) {
 *     fprintf(user_data, "%d %.*s\n", r->status, (int)r->data_size, (char *)r->data);
 *     threadpool_result_free(r);
 *   }
 *   threadpool_submit_with_callback(pool, "{\"op\": \"echo\", \"args\": {}}", print, stdout);
 */
THREADPOOL_API uint64_t threadpool_submit_with_callback(threadpool_t *pool, const char *json,
                                                        result_callback_fn callback,
                                                        void *user_data);

enum { THREADPOOL_NORMAL, THREADPOOL_HIGH, THREADPOOL_LOW };
enum { THREADPOOL_BY_ID, THREADPOOL_BY_CALLBACK, THREADPOOL_BY_QUEUE };

typedef struct threadpool_queue threadpool_queue;

/* A request in full; what is 0 is the default. */
typedef struct threadpool_request {
  const char *json;    /* the text; NULL: no text but `opcode` and `payload` */
  size_t length;       /* of the text; 0: it ends with a zero */
  uint32_t opcode;     /* without text: what to do; as are the next four */
  const void *payload; /* without text: the argument, size bytes, copied (threadpool_payload) */
  size_t size;
  int priority;        /* THREADPOOL_NORMAL, _HIGH, _LOW */
  uint32_t timeout_ms; /* 0: none */
  int deliver;         /* THREADPOOL_BY_ID, _BY_CALLBACK, _BY_QUEUE (threadpool_completions) */
  result_callback_fn callback; /* if _BY_CALLBACK */
  void *user_data;             /* given to the callback */
  threadpool_queue *queue;     /* if _BY_QUEUE: NULL is the pool's own, threadpool_completions */
  bool
      credited; /* if _BY_QUEUE: a partial result counts towards the window until threadpool_credit */
} threadpool_request;

/* [any] Submit n requests at once; ids[i] is that of the i-th, or 0. Returns how many were accepted: the first ones;
 * less than n only if max_pending or memory is exhausted, or a request is not valid by itself (threadpool_last_error).
 * 0 and nothing written: `requests` or `ids` is NULL.
 *
 *   threadpool_request q = {.json = text, .length = n, .deliver = THREADPOOL_BY_QUEUE};
 *   uint64_t id;
 *   if (threadpool_submit_batch(pool, &q, 1, &id) == 0) puts(threadpool_last_error());
 */
THREADPOOL_API size_t threadpool_submit_batch(threadpool_t *pool,
                                              const threadpool_request *requests, size_t n,
                                              uint64_t *ids);

/* [any] The next entry of this request, NULL: not yet. An id that is unknown, or whose final entry was fetched, and a pool
 * that is NULL get an entry with ERR_INVALID_ARGUMENT, one that is closed ERR_SHUTDOWN: a loop that polls comes to an
 * end. */
THREADPOOL_API result_t *threadpool_poll_result(threadpool_t *pool, uint64_t task_id);

/* [any] The same, but wait up to timeout_ms (0: not at all; UINT32_MAX: without limit). One thread at a time waits for a
 * request; another one gets an entry with ERR_BUSY. A handler that waits gives its seat away first; inside a job, for
 * its own request, and when no more threads are to be had, the entry says so (ERR_WRONG_THREAD, ERR_QUEUE_FULL). If it is
 * to end itself (threadpool_cancelled) the entry is one with ERR_CANCELLED, and the wait can be taken up again; once a
 * shutdown cancels what is left, a shield does not hold that off. */
THREADPOOL_API result_t *threadpool_wait_result(threadpool_t *pool, uint64_t task_id,
                                                uint32_t timeout_ms);

/* [any] Free an entry, also after the pool is gone. NULL is allowed. */
THREADPOOL_API void threadpool_result_free(result_t *result);

/* Queues of completions of one's own: for a part of a program that drains its results by itself, from any number of
 * pools. _new [any]: NULL, out of memory. _free [any, nobody else uses it or submits requests that name it] waits for the end of
 * those that do, and frees what nobody took; NULL is allowed. Entries stay in it when their pool is gone.
 *
 *   threadpool_queue *queue = threadpool_queue_new();
 *   threadpool_request q = {.json = text, .deliver = THREADPOOL_BY_QUEUE, .queue = queue};
 *   threadpool_submit_batch(pool, &q, 1, &id);
 *   while (threadpool_queue_wait(queue, UINT32_MAX) == 1 && threadpool_queue_take(queue, &r, 1)) use(r);
 */
THREADPOOL_API threadpool_queue *threadpool_queue_new(void);
THREADPOOL_API void threadpool_queue_free(threadpool_queue *queue);
/* [any] As threadpool_completions and threadpool_event_fd. The descriptor is closed with the queue. NULL, for the queue or
 * `out`: 0, and ERR_INVALID_ARGUMENT. */
THREADPOOL_API size_t threadpool_queue_take(threadpool_queue *queue, result_t **out, size_t n);
THREADPOOL_API int threadpool_queue_fd(threadpool_queue *queue);
/* [any, one thread at a time] Wait up to timeout_ms (UINT32_MAX: without limit). 1: there is something to take; 0: the
 * time is over; ERR_BUSY: a signal handler ran, call it again when that was dealt with; ERR_INVALID_ARGUMENT: NULL. */
THREADPOOL_API int threadpool_queue_wait(threadpool_queue *queue, uint32_t timeout_ms);
/* [any] n partial results of a `credited` request were used: there is room for so many more, at most for a whole window.
 * ERR_INVALID_ARGUMENT: unknown, or its final entry was taken. */
THREADPOOL_API int threadpool_credit(threadpool_t *pool, uint64_t task_id, uint32_t n);
/* [any] How many requests count towards max_pending: those whose final entry nobody has fetched. A recent value; 0
 * for NULL and for one that is closed. */
THREADPOOL_API uint32_t threadpool_pending(threadpool_t *pool);

/* [any] Up to n entries of requests with THREADPOOL_BY_QUEUE, in the order in which they came; returns how
 * many, 0 also for a pool that is NULL or closed, and for `out` NULL. */
THREADPOOL_API size_t threadpool_completions(threadpool_t *pool, result_t **out, size_t n);

/* [any] A descriptor that is readable while threadpool_completions has something; made when first asked for, and
 * closed with the pool. Do not read it: threadpool_completions does. A negative code: none to be had.
 *
 *   struct pollfd p = {.fd = threadpool_event_fd(pool), .events = POLLIN};
 *   result_t *r[64];
 *   while (poll(&p, 1, -1) > 0)
 *     for (size_t i = 0, n = threadpool_completions(pool, r, 64); i < n; i++) use(r[i]);
 */
THREADPOOL_API int threadpool_event_fd(threadpool_t *pool);

/* [any] Ask for the end of a request. 1: it will end, as ERR_CANCELLED unless it comes to its end before; 0: it is
 * over; ERR_INVALID_ARGUMENT: unknown. */
THREADPOOL_API int threadpool_cancel(threadpool_t *pool, uint64_t task_id);

/* [any] Nobody will fetch the results: they are discarded, also those that wait. ERR_INVALID_ARGUMENT: unknown. */
THREADPOOL_API int threadpool_detach(threadpool_t *pool, uint64_t task_id);

enum { THREADPOOL_QUEUED = 1, THREADPOOL_RUNNING, THREADPOOL_WAITING, THREADPOOL_DONE };

/* [any] One of the above; ERR_INVALID_ARGUMENT: unknown, or fetched. THREADPOOL_DONE is said a moment before the final
 * entry of a request with THREADPOOL_BY_QUEUE is in its queue: wait for that on the queue. */
THREADPOOL_API int threadpool_status(threadpool_t *pool, uint64_t task_id);

/* --- handlers ---------------------------------------------------------------------------------- */

/* What a handler works on; valid until it has ended. */
typedef struct threadpool_task task_t;

/* A plain handler runs to its end. A poll handler returns THREADPOOL_PENDING when it has to wait, having arranged
 * for threadpool_wake, or THREADPOOL_AGAIN to give way to others; it is called again until it is
 * THREADPOOL_READY. `state` is its own pointer, NULL at first.
 *
 * A request that is cancelled or late ends without another call. If `*state` is not NULL when it ends, in whatever way
 * (a crash, too), `drop(*state)` is called once, on a worker, before the final entry is to be had. So a handler that
 * has freed it, or keeps something there that is not to be freed, sets it to NULL. */
enum { THREADPOOL_PENDING, THREADPOOL_READY, THREADPOOL_AGAIN };
typedef void (*handler_fn)(task_t *task);
typedef int (*threadpool_poll_fn)(task_t *task, void **state);

/* A plain one, one that polls, and one that streams:
 *
 *   static void twice(task_t *task) {
 *     int64_t n;
 *     if (threadpool_arg_int(task, "n", &n))
 *       threadpool_return_copy(task, &(int64_t){2 * n}, sizeof n);
 *     else
 *       threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"n\": expected a whole number");
 *   }
 *   static int later(task_t *task, void **state) {  // called twice, 100 ms apart; holds no thread meanwhile
 *     if (*state) return THREADPOOL_READY;
 *     *state = task;                                // not to be freed: no drop
 *     return threadpool_sleep(task, 100);
 *   }
 *   static void count(task_t *task) {
 *     for (int i = 0; !threadpool_cancelled(task) && threadpool_emit(task, &i, sizeof i) == 0; i++) continue;
 *   }
 *   threadpool_register(pool, &(threadpool_handler){.name = "twice", .opcode = 100, .run = twice});
 *   threadpool_register(pool, &(threadpool_handler){.name = "later", .opcode = -1, .poll = later});
 */
typedef struct threadpool_handler {
  const char *name;          /* "op" of a request; copied. Letters, digits, _ and - */
  int64_t opcode;            /* "opcode" of a request, 0..65535; -1: it has none */
  handler_fn run;            /* either this */
  threadpool_poll_fn poll;   /* or this */
  void (*drop)(void *state); /* of a poll handler, may be NULL: see above */
  bool blocking;             /* may block: runs on a thread of its own, not on a worker */
  void *user_data;           /* threadpool_user_data */
} threadpool_handler;

/* [any] Add an operation, or replace one that has the same name or opcode, for requests that come later.
 * ERR_INVALID_ARGUMENT (NULL, or a member is wrong), ERR_MALLOC_FAILED, ERR_SHUTDOWN. */
THREADPOOL_API int threadpool_register(threadpool_t *pool, const threadpool_handler *handler);

/* [H] Arguments: members of the request's "args". False: there is no such member, or it has another type; nothing is
 * written then, nor for a name that is NULL. `length` may be NULL. Text, which ends with a zero that does not count, and
 * raw JSON live as long as the task. */
THREADPOOL_API bool threadpool_arg_text(task_t *task, const char *name, const char **text,
                                        size_t *length);
THREADPOOL_API bool threadpool_arg_int(task_t *task, const char *name, int64_t *value);
THREADPOOL_API bool threadpool_arg_uint(task_t *task, const char *name, uint64_t *value);
THREADPOOL_API bool threadpool_arg_double(task_t *task, const char *name, double *value);
THREADPOOL_API bool threadpool_arg_bool(task_t *task, const char *name, bool *value);
/* [H] Whether the member is there, whatever its type. */
THREADPOOL_API bool threadpool_arg_is(task_t *task, const char *name);
/* [H] All of "args", or with a name one member, as JSON text; NULL: there is none, or out of memory. */
THREADPOOL_API const char *threadpool_arg_json(task_t *task, const char *name, size_t *length);
/* [H] The argument of a request without text; NULL: it had none. `size` may be NULL. */
THREADPOOL_API const void *threadpool_payload(task_t *task, size_t *size);

/* [H] A region by the name that member `name` holds, pinned until the task ends; `access`: what is to be done with it
 * (SYMBOL_READ, SYMBOL_WRITE). `size` may be NULL. NULL: threadpool_fail was called with the reason; return. */
THREADPOOL_API void *threadpool_arg_symbol(task_t *task, const char *name, uint32_t access,
                                           size_t *size);

/* [H] The result. _return takes the data over: release(data, arg) is called when nobody needs it any more;
 * release may be NULL (static data). _return_copy copies (ERR_MALLOC_FAILED). The last one counts. Data may be NULL if
 * size is 0. */
THREADPOOL_API void threadpool_return(task_t *task, void *data, size_t size,
                                      void (*release)(void *data, void *arg), void *arg);
THREADPOOL_API int threadpool_return_copy(task_t *task, const void *data, size_t size);

/* [H] It fails with this code (negative) and message, as of printf; what was returned is discarded. What is returned
 * after that goes with the error: its `data`. */
THREADPOOL_API void threadpool_fail(task_t *task, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* [H] A partial result, copied. While the window is full, a plain handler waits, its seat given away meanwhile; a
 * poll handler gets ERR_QUEUE_FULL, returns THREADPOOL_PENDING, and is called again when there is room.
 * ERR_CANCELLED: nobody wants it any more, or the window is full and the pool closes, also behind a shield;
 * ERR_MALLOC_FAILED. Data may be NULL if size is 0. */
THREADPOOL_API int threadpool_emit(task_t *task, const void *data, size_t size);

/* [H] Whether it was asked to end. A long handler asks now and then, and returns; once it was told so its request ends
 * as ERR_CANCELLED or ERR_TIMEOUT, unless it fails with another code. */
THREADPOOL_API bool threadpool_cancelled(task_t *task);
/* [H] Between the two, cancellation (and a timeout) is held off. They nest: ERR_QUEUE_FULL beyond 255 deep;
 * ERR_INVALID_ARGUMENT if there is no shield to take away; both change nothing. */
THREADPOOL_API int threadpool_shield(task_t *task);
THREADPOOL_API int threadpool_unshield(task_t *task);

THREADPOOL_API uint64_t threadpool_task_id(const task_t *task);   /* [H] */
THREADPOOL_API threadpool_t *threadpool_pool(const task_t *task); /* [H] */
THREADPOOL_API void *threadpool_user_data(const task_t *task);    /* [H] as registered */

/* For poll handlers: something that wakes the task. _waker_new [H] makes one; NULL: out of memory. _wake [any] lets the
 * task be called again; nothing happens if it has ended, or its pool is gone. _waker_free [any], also then. NULL is
 * allowed for both. */
typedef struct threadpool_waker threadpool_waker;
THREADPOOL_API threadpool_waker *threadpool_waker_new(task_t *task);
THREADPOOL_API void threadpool_wake(threadpool_waker *waker);
THREADPOOL_API void threadpool_waker_free(threadpool_waker *waker);
/* [H] Call a poll handler again after so many milliseconds: `return threadpool_sleep(task, 100);`. Returns
 * THREADPOOL_PENDING. */
THREADPOOL_API int threadpool_sleep(task_t *task, uint32_t ms);

/* --- symbols: named regions of memory ----------------------------------------------------------- */

typedef struct symbol_table symbol_table_t;
enum { SYMBOL_READ = 1, SYMBOL_WRITE = 2, SYMBOL_READ_WRITE = 3 };

/* [any] The pool's table; NULL for NULL, and for a pool that is closed. It lives as long as the pool.
 *
 *   static char buffer[4096];
 *   symbol_register(threadpool_symbols(pool), "buffer", buffer, sizeof buffer);
 *   threadpool_submit(pool, "{\"op\": \"write_memory\", \"args\": {\"write_to\": \"buffer\", \"data\": \"Hello\"}}");
 */
THREADPOOL_API symbol_table_t *threadpool_symbols(threadpool_t *pool);

/* [any] Give a region a name (1 to 63 bytes, without control characters), to be read and written. The memory must
 * stay until it is unregistered. ERR_INVALID_ARGUMENT, ERR_BUSY (the name is taken), ERR_MALLOC_FAILED. */
THREADPOOL_API int symbol_register(symbol_table_t *table, const char *name, void *ptr,
                                   uint32_t size);
/* [any] The same, with SYMBOL_READ, SYMBOL_WRITE or both. */
THREADPOOL_API int symbol_register_flags(symbol_table_t *table, const char *name, void *ptr,
                                         uint32_t size, uint32_t flags);
/* [any] The region, its size in *out_size (may be NULL); NULL: unknown. Nothing keeps it there: it is for who registered
 * it; handlers use threadpool_arg_symbol. */
THREADPOOL_API void *symbol_resolve(symbol_table_t *table, const char *name, uint32_t *out_size);
/* [any] ERR_SYMBOL_NOT_FOUND; ERR_BUSY: a task uses it just now. */
THREADPOOL_API int symbol_unregister(symbol_table_t *table, const char *name);

/* --- statistics -------------------------------------------------------------------------------- */

/* Each worker counts for itself, on its own cache line. X(name, what it counts) */
#define THREADPOOL_COUNTERS(X)                                                                     \
  X(executed, "tasks, injected calls and stolen jobs that were run")                               \
  X(stolen, "jobs, tasks and batches taken from another worker")                                   \
  X(parked, "times it blocked because there was nothing to do")                                    \
  X(waited, "times it blocked until a job another worker had was done")                            \
  X(woken, "times somebody woke it")                                                               \
  X(overflowed, "times a full ring gave half of itself to the global queue")                       \
  X(batches, "batches it took from the global queue")                                              \
  X(lifo_capped, "times the ring went first after 3 tasks from the LIFO slot")                     \
  X(lifo_stolen, "tasks it took from another's LIFO slot")                                         \
  X(half_steals, "times it took half of another's ring")                                           \
  X(jobs_stolen, "jobs it took from another's deque")                                              \
  X(from_high, "tasks it fetched from the high-priority queue")                                    \
  X(from_normal, "tasks it fetched from the normal queue")                                         \
  X(from_low, "tasks it fetched from the low-priority queue")                                      \
  X(substitutes, "times its seat was given to another thread")                                     \
  X(wakes_by_post, "sleepers woken because it posted work")                                        \
  X(wakes_by_finder, "sleepers woken because it found more work than it took")                     \
  X(wakes_of_waiter, "join waiters woken to help")                                                 \
  X(wakes_deferred, "times it left a wake to the alarm")                                           \
  X(wakes_by_alarm, "sleepers and join waiters woken by the alarm")                                \
  X(exposed, "forks that were offered to others")                                                  \
  X(decoded, "requests it decoded as an updater")                                                  \
  X(splits, "times an updater gave half of its domain to a new one")                               \
  X(merges, "times an updater found nothing, ended, and gave its domain back")

typedef struct threadpool_counters {
#define THREADPOOL_COUNTER_MEMBER(name, text) uint64_t name;
  THREADPOOL_COUNTERS(THREADPOOL_COUNTER_MEMBER)
#undef THREADPOOL_COUNTER_MEMBER
} threadpool_counters;

/* [any] Recent values of worker `index`; threadpool_workers(pool) is the main seat, -1 the sum of all.
 * ERR_INVALID_ARGUMENT: no such worker, or NULL; ERR_SHUTDOWN.
 *
 *   threadpool_counters c;
 *   if (threadpool_stats(pool, -1, &c) == 0) printf("%" PRIu64 " tasks\n", c.executed);
 */
THREADPOOL_API int threadpool_stats(threadpool_t *pool, int index, threadpool_counters *out);

#ifdef __cplusplus
}
#endif

#include "threadpool_parallel.h"
#include "threadpool_vector.h"

#endif
