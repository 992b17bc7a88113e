/* memory.c - write_memory and read_memory: named regions (threadpool_symbols). */
#include <string.h>

#include "ops/builtin.h"

static bool within(task_t *task, uint64_t offset, uint64_t length, size_t size) {
  if (offset <= size && length <= size - offset) return true;
  threadpool_fail(task, ERR_INVALID_ARGUMENT,
                  "offset %llu and length %llu: the region has %zu bytes",
                  (unsigned long long)offset, (unsigned long long)length, size);
  return false;
}

/* {"write_to": symbol, "data": text, "offset": 0} */
void tp_op_write_memory(task_t *task) {
  const char *data;
  size_t length, size;
  uint64_t offset = 0;
  if (!tp_args_known(task, "write_to, data, offset")) return;
  if (!threadpool_arg_text(task, "data", &data, &length)) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"data\": expected a string");
    return;
  }
  if (!tp_arg_whole(task, "offset", &offset)) return;
  char *region = threadpool_arg_symbol(task, "write_to", SYMBOL_WRITE, &size);
  if (region && within(task, offset, length, size)) memcpy(region + offset, data, length);
}

/* {"read_from": symbol, "offset": 0, "length": all that follows} */
void tp_op_read_memory(task_t *task) {
  size_t size;
  uint64_t offset = 0, length = 0;
  if (!tp_args_known(task, "read_from, offset, length")) return;
  const char *region = threadpool_arg_symbol(task, "read_from", SYMBOL_READ, &size);
  if (!region || !tp_arg_whole(task, "offset", &offset)) return;
  if (offset <= size) length = size - offset;
  if (!tp_arg_whole(task, "length", &length) || !within(task, offset, length, size)) return;
  if (threadpool_return_copy(task, region + offset, length) != 0)
    threadpool_fail(task, ERR_MALLOC_FAILED, "read_memory: out of memory for %llu bytes",
                    (unsigned long long)length);
}
