/* requests.c - the entry points of threadpool.h for requests, handlers and symbols: check, call down. */
#include <string.h>

#include "api/pool.h"
#include "base/error.h"

/* What is wrong with this pool; 0: nothing, and it was entered. */
static int entered(threadpool_t *pool) {
  if (!pool)
    return tp_say(ERR_INVALID_ARGUMENT,
                  "the pool is NULL: was it made? threadpool_create says why not");
  return tp_enter(pool) ? 0 : tp_say(ERR_SHUTDOWN, "%s", tp_error_text(ERR_SHUTDOWN));
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
  return r;
}

result_t *threadpool_poll_result(threadpool_t *pool, uint64_t task_id) {
  return fetch(pool, task_id, 0);
}

result_t *threadpool_wait_result(threadpool_t *pool, uint64_t task_id, uint32_t timeout_ms) {
  return fetch(pool, task_id,
               timeout_ms == UINT32_MAX ? UINT64_MAX : tp_now_ns() + timeout_ms * TP_NS_PER_MS);
}

size_t threadpool_completions(threadpool_t *pool, result_t **out, size_t n) {
  if (!out || entered(pool) != 0) return 0;
  size_t got = tp_call_completions(pool->requests, out, n);
  tp_leave(pool);
  return got;
}

int threadpool_event_fd(threadpool_t *pool) {
  int fd = entered(pool);
  if (fd) return fd;
  fd = tp_call_event_fd(pool->requests);
  tp_leave(pool);
  return fd;
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

const char *threadpool_last_error(void) {
  return tp_said();
}
