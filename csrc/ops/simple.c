/* simple.c - echo and sleep. */
#include "base/alloc.h"
#include "ops/builtin.h"
#include "pool/call.h"
#include "pool/request.h"

static void give_back(void *data, void *arena) {
  tp_arena_put(arena, data);
}

/* yyjson asks for six times a string's length, as if each character were to be escaped. */
static char *shrunk(tp_arena *arena, char *text, size_t length) {
  enum { WORTH_IT = 1 << 16 };
  char *smaller = length < WORTH_IT ? NULL : tp_arena_resize(arena, text, length + 1, length + 1);
  return smaller ? smaller : text;
}

/* Values lie one after another. *state is the part that is still to be sent. */
static int echo_parts(task_t *task, yyjson_val *parts, void **state) {
  yyjson_val *part = *state ? *state : unsafe_yyjson_get_first(parts),
             *end = unsafe_yyjson_get_next(parts);
  for (; part < end; part = unsafe_yyjson_get_next(part)) {
    if (!yyjson_is_str(part)) {
      threadpool_fail(task, ERR_INVALID_ARGUMENT,
                      "argument \"parts\": item %llu: expected a string, got %s",
                      (unsigned long long)task->sequence, yyjson_get_type_desc(part));
      return THREADPOOL_READY;
    }
    int error = threadpool_emit(task, yyjson_get_str(part), yyjson_get_len(part));
    *state = part;
    if (error == ERR_QUEUE_FULL) return THREADPOOL_PENDING;
    if (error) {
      threadpool_fail(task, error, "part %llu: %s", (unsigned long long)task->sequence,
                      threadpool_error_text(error));
      return THREADPOOL_READY;
    }
  }
  return THREADPOOL_READY;
}

/* {"parts": ["a", "b"]}: one partial result each. Anything else: the result is the arguments, as JSON. */
int tp_op_echo(task_t *task, void **state) {
  yyjson_val *parts = yyjson_obj_get(task->args, "parts");
  if (parts && !yyjson_is_arr(parts)) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT,
                    "argument \"parts\": expected an array of strings, got %s",
                    yyjson_get_type_desc(parts));
    return THREADPOOL_READY;
  }
  if (parts) return echo_parts(task, parts, state);
  size_t length = 0;
  const yyjson_alc memory = tp_json_memory(&task->arena);
  char *text = task->args ? yyjson_val_write_opts(task->args, 0, &memory, &length, NULL) : NULL;
  if (task->args && !text)
    threadpool_fail(task, ERR_MALLOC_FAILED, "echo: out of memory");
  else if (text)
    threadpool_return(task, shrunk(&task->arena, text, length), length, give_back, &task->arena);
  return THREADPOOL_READY;
}

/* {"ms": 100} */
int tp_op_sleep(task_t *task, void **state) {
  uint64_t ms;
  if (!tp_args_known(task, "ms")) return THREADPOOL_READY;
  if (!threadpool_arg_uint(task, "ms", &ms) || ms > UINT32_MAX) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT,
                    "argument \"ms\": expected a whole number from 0 to 4294967295");
    return THREADPOOL_READY;
  }
  if (*state && tp_clock_fired(&task->nap)) return THREADPOOL_READY;
  if (*state) return THREADPOOL_PENDING; /* woken for another reason */
  *state = task;
  return threadpool_sleep(task, (uint32_t)ms);
}
