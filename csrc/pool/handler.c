/* handler.c - what a handler calls: arguments, results, cancellation (threadpool.h, "handlers").
 *
 * What takes a lock, ours or that of malloc, probes the stack first (X4): an overflow there would leave it held. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "pool/calls.h"
#include "pool/request.h"
#include "sched/guard.h"

static yyjson_val *member(const task_t *task, const char *name) {
  return name ? yyjson_obj_get(task->args, name) : NULL; /* NULL without args */
}

bool threadpool_arg_text(task_t *task, const char *name, const char **text, size_t *length) {
  yyjson_val *v = member(task, name);
  if (!yyjson_is_str(v)) return false;
  *text = yyjson_get_str(v);
  if (length) *length = yyjson_get_len(v);
  return true;
}

bool threadpool_arg_int(task_t *task, const char *name, int64_t *value) {
  yyjson_val *v = member(task, name);
  if (!yyjson_is_int(v) || (yyjson_is_uint(v) && yyjson_get_uint(v) > INT64_MAX)) return false;
  *value = yyjson_get_sint(v);
  return true;
}

bool threadpool_arg_uint(task_t *task, const char *name, uint64_t *value) {
  yyjson_val *v = member(task, name);
  if (!yyjson_is_uint(v)) return false;
  *value = yyjson_get_uint(v);
  return true;
}

bool threadpool_arg_double(task_t *task, const char *name, double *value) {
  yyjson_val *v = member(task, name);
  if (!yyjson_is_num(v)) return false;
  *value = yyjson_get_num(v);
  return true;
}

bool threadpool_arg_bool(task_t *task, const char *name, bool *value) {
  yyjson_val *v = member(task, name);
  if (!yyjson_is_bool(v)) return false;
  *value = yyjson_get_bool(v);
  return true;
}

bool threadpool_arg_is(task_t *task, const char *name) {
  return member(task, name) != NULL;
}

const char *threadpool_arg_json(task_t *task, const char *name, size_t *length) {
  tp_library_probe();
  yyjson_val *v = name ? member(task, name) : task->args;
  size_t n;
  const yyjson_alc memory = tp_json_memory(&task->arena);
  tp_printed *p = v ? tp_arena_get(&task->arena, sizeof *p) : NULL;
  if (!p) return NULL;
  p->text = yyjson_val_write_opts(v, 0, &memory, &n, NULL);
  if (!p->text) {
    tp_arena_put(&task->arena, p);
    return NULL;
  }
  p->next = task->printed;
  task->printed = p;
  if (length) *length = n;
  return p->text;
}

const void *threadpool_payload(task_t *task, size_t *size) {
  if (task->doc || !task->text) return NULL;
  if (size) *size = task->text_size;
  return task->text;
}

void *threadpool_arg_symbol(task_t *task, const char *name, uint32_t access, size_t *size) {
  const char *symbol;
  size_t length;
  tp_library_probe();
  if (!threadpool_arg_text(task, name, &symbol, &length)) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT,
                    "argument \"%s\": expected the name of a symbol, a string", name);
    return NULL;
  }
  tp_symbol_pin_t pin;
  int error = tp_call_pin(task, symbol, length, access, &pin);
  if (error) {
    threadpool_fail(task, error, "%s", tp_said());
    return NULL;
  }
  if (size) *size = pin.size;
  return pin.ptr;
}

void threadpool_return(task_t *task, void *data, size_t size,
                       void (*release)(void *data, void *arg), void *arg) {
  if (size > UINT32_MAX) {
    if (release) release(data, arg);
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "a result of %zu bytes: expected less than 4 GiB",
                    size);
    return;
  }
  tp_call_return(task, data, size, release, arg);
}

static void free_copy(void *data, void *arena) {
  tp_arena_put(arena, data);
}

int threadpool_return_copy(task_t *task, const void *data, size_t size) {
  if (size >= UINT32_MAX) return ERR_INVALID_ARGUMENT;
  tp_library_probe();
  char *copy = tp_arena_get(&task->arena, size + 1);
  if (!copy) return ERR_MALLOC_FAILED;
  if (size) memcpy(copy, data, size);
  copy[size] = '\0';
  tp_call_return(task, copy, size, free_copy, &task->arena);
  return 0;
}

void threadpool_fail(task_t *task, int code, const char *format, ...) {
  result_t *r = &task->result.r;
  va_list args;
  va_start(args, format);
  int length = vsnprintf(r->error_msg, sizeof r->error_msg, format, args);
  va_end(args);
  tp_call_release(&task->result);
  tp_text_clean(r->error_msg, length >= (int)sizeof r->error_msg);
  r->status = code < 0 ? code : ERR_INVALID_ARGUMENT;
}

int threadpool_emit(task_t *task, const void *data, size_t size) {
  tp_library_probe();
  return tp_call_emit(task, data, size);
}

bool threadpool_cancelled(task_t *task) {
  return tp_call_cancelled(task);
}
int threadpool_shield(task_t *task) {
  return tp_task_shield(task->task)
             ? 0
             : tp_say(ERR_QUEUE_FULL, "shield: they nest %d deep at most", TP_SHIELDS_MOST);
}
int threadpool_unshield(task_t *task) {
  return tp_task_unshield(task->task)
             ? 0
             : tp_say(ERR_INVALID_ARGUMENT, "unshield: no shield was raised that is left");
}

uint64_t threadpool_task_id(const task_t *task) {
  return task->result.r.task_id;
}
threadpool_t *threadpool_pool(const task_t *task) {
  return task->pool;
}
void *threadpool_user_data(const task_t *task) {
  return task->op->user_data;
}

int threadpool_sleep(task_t *task, uint32_t ms) {
  tp_library_probe();
  int error = tp_call_nap(task, tp_now_ns() + ms * TP_NS_PER_MS);
  if (!error) return THREADPOOL_PENDING;
  threadpool_fail(task, error, "sleep: %s", tp_error_text(error));
  return THREADPOOL_READY;
}
