/* requests.c - the entry points of threadpool.h for requests, handlers and symbols: check, call down. */
#include <string.h>
#include <time.h>

#include "api/process.h"
#include "base/alloc.h"
#include "base/error.h"
#include "pool/completions.h"
#include "sched/guard.h"

/* What is wrong with this pool; 0: nothing, and it was entered. */
static int entered(threadpool_t *pool) {
  if (!pool)
    return tp_say(ERR_INVALID_ARGUMENT,
                  "the pool is NULL: was it made? threadpool_create says why not");
  return tp_enter(pool) ? 0 : tp_refused(pool);
}

/* The text is measured outside of the section, so that a bad pointer is its handler's crash and no more. */
static uint64_t submit(threadpool_t *pool, threadpool_request *request) {
  request->length = strlen(request->json);
  if (entered(pool) != 0) return 0;
  uint64_t id = 0;
  tp_call_submit(pool->requests, request, 1, &id);
  tp_leave(pool);
  return id;
}

uint64_t threadpool_submit(threadpool_t *pool, const char *json) {
  if (!json) return tp_say(0, "the request is NULL");
  return submit(pool, &(threadpool_request){.json = json});
}

uint64_t threadpool_submit_with_callback(threadpool_t *pool, const char *json,
                                         result_callback_fn callback, void *user_data) {
  if (!json || !callback) return tp_say(0, "the request or its callback is NULL");
  return submit(pool, &(threadpool_request){.json = json,
                                            .deliver = THREADPOOL_BY_CALLBACK,
                                            .callback = callback,
                                            .user_data = user_data});
}

size_t threadpool_submit_batch(threadpool_t *pool, const threadpool_request *requests, size_t n,
                               uint64_t *ids) {
  if (!requests || !ids) return tp_say(0, "requests or ids is NULL");
  for (size_t i = 0; i < n; i++) ids[i] = 0;
  if (entered(pool) != 0) return 0;
  size_t done = tp_call_submit(pool->requests, requests, n, ids);
  tp_leave(pool);
  return done;
}

/* Also an entry, so that a loop that polls a pool which is gone comes to an end. */
static result_t *fetch(threadpool_t *pool, uint64_t id, uint64_t deadline_ns) {
  int error = entered(pool);
  if (error) return tp_call_error(id, error, tp_said());
  result_t *r = tp_call_fetch(pool->requests, id, deadline_ns);
  tp_leave(pool);
  tp_process_hold();
  return r;
}

result_t *threadpool_poll_result(threadpool_t *pool, uint64_t task_id) {
  return fetch(pool, task_id, 0);
}

result_t *threadpool_wait_result(threadpool_t *pool, uint64_t task_id, uint32_t timeout_ms) {
  uint64_t deadline_ns = timeout_ms == 0            ? 0
                         : timeout_ms == UINT32_MAX ? UINT64_MAX
                                                    : tp_now_ns() + timeout_ms * TP_NS_PER_MS;
  return fetch(pool, task_id, deadline_ns);
}

size_t threadpool_completions(threadpool_t *pool, result_t **out, size_t n) {
  if (!out || entered(pool) != 0) return 0;
  size_t got = tp_completions_take(tp_calls_queue(pool->requests), out, n);
  tp_leave(pool);
  tp_process_hold();
  return got;
}

int threadpool_event_fd(threadpool_t *pool) {
  int fd = entered(pool);
  if (fd) return fd;
  fd = tp_completions_fd(tp_calls_queue(pool->requests));
  tp_leave(pool);
  return fd;
}

threadpool_queue *threadpool_queue_new(void) {
  threadpool_queue *q = tp_completions_new(NULL, NULL);
  if (q)
    q->counted = true;
  else
    tp_say(ERR_MALLOC_FAILED, "%s", tp_error_text(ERR_MALLOC_FAILED));
  return q;
}

void threadpool_queue_free(threadpool_queue *queue) {
  if (!queue) return;
  const struct timespec moment = {0, 200000};
  for (int i = 0; tp_load(&queue->expected, acquire) > 0; i++) { /* N4 */
    if (i < 1000)
      tp_pause();
    else
      nanosleep(&moment, NULL);
  }
  tp_completions_free(queue);
}

size_t threadpool_queue_take(threadpool_queue *queue, result_t **out, size_t n) {
  return queue && out ? tp_completions_take(queue, out, n) : 0;
}

int threadpool_queue_fd(threadpool_queue *queue) {
  return queue ? tp_completions_fd(queue) : tp_say(ERR_INVALID_ARGUMENT, "the queue is NULL");
}

int threadpool_queue_wait(threadpool_queue *queue, uint32_t timeout_ms) {
  if (!queue) return tp_say(ERR_INVALID_ARGUMENT, "the queue is NULL");
  return tp_completions_wait(
      queue, timeout_ms == UINT32_MAX ? UINT64_MAX : tp_now_ns() + timeout_ms * TP_NS_PER_MS);
}

int threadpool_credit(threadpool_t *pool, uint64_t task_id, uint32_t n) {
  int code = entered(pool);
  if (code) return code;
  code = tp_call_credit(pool->requests, task_id, n);
  tp_leave(pool);
  return code;
}

uint32_t threadpool_pending(threadpool_t *pool) {
  if (entered(pool) != 0) return 0;
  uint32_t n = tp_calls_pending(pool->requests);
  tp_leave(pool);
  return n;
}

int threadpool_cancel(threadpool_t *pool, uint64_t task_id) {
  int code = entered(pool);
  if (code) return code;
  code = tp_call_cancel(pool->requests, task_id);
  tp_leave(pool);
  return code;
}

int threadpool_detach(threadpool_t *pool, uint64_t task_id) {
  int code = entered(pool);
  if (code) return code;
  code = tp_call_detach(pool->requests, task_id);
  tp_leave(pool);
  return code;
}

int threadpool_status(threadpool_t *pool, uint64_t task_id) {
  int code = entered(pool);
  if (code) return code;
  code = tp_call_status(pool->requests, task_id);
  tp_leave(pool);
  return code;
}

int threadpool_register(threadpool_t *pool, const threadpool_handler *handler) {
  int code = entered(pool);
  if (code) return code;
  code = tp_ops_add(tp_calls_ops(pool->requests), handler, NULL);
  tp_leave(pool);
  return code;
}

symbol_table_t *threadpool_symbols(threadpool_t *pool) {
  if (entered(pool) != 0) return NULL;
  symbol_table_t *table = tp_calls_symbols(pool->requests);
  tp_leave(pool);
  return table;
}

/* Not a reference to the task: one may be used, and freed, when the pool is gone (its handle is not). */
struct threadpool_waker {
  threadpool_t *pool;
  uint64_t task_id;
};

threadpool_waker *threadpool_waker_new(task_t *task) {
  tp_library_probe();
  threadpool_waker *w = tp_get(sizeof *w);
  if (w) *w = (threadpool_waker){task->pool, tp_task_id(task->task)};
  return w;
}

void threadpool_wake(threadpool_waker *waker) {
  if (!waker || !tp_enter_late(waker->pool)) return;
  tp_task *t = tp_task_find(waker->pool->tasks, waker->task_id);
  if (t) {
    tp_task_wake(t);
    tp_task_unref(t);
  }
  tp_leave(waker->pool);
}

void threadpool_waker_free(threadpool_waker *waker) {
  tp_put(waker);
}

const char *threadpool_last_error(void) {
  return tp_said();
}
