#include "ops/builtin.h"

#include <string.h>

#include "base/error.h"

#define NO_HTTP "HTTP is not part of this build"

static const struct {
  threadpool_handler handler;
  const char *missing;
} builtin[] = {
    {{.name = "updater", .opcode = 0}, "opcode 0 is reserved: no request can ask for it"},
    {{.name = "http_get", .opcode = 1}, NO_HTTP},
    {{.name = "http_post", .opcode = 2}, NO_HTTP},
    {{.name = "write_memory", .opcode = 3, .run = tp_op_write_memory}, NULL},
    {{.name = "read_memory", .opcode = 4, .run = tp_op_read_memory}, NULL},
    {{.name = "file_read", .opcode = 5, .run = tp_op_file_read, .blocking = true}, NULL},
    {{.name = "file_write", .opcode = 6, .run = tp_op_file_write, .blocking = true}, NULL},
    {{.name = "sleep", .opcode = 7, .poll = tp_op_sleep}, NULL},
    {{.name = "echo", .opcode = 8, .poll = tp_op_echo}, NULL},
};
enum { BUILTIN_COUNT = sizeof builtin / sizeof *builtin };

static int add(tp_ops *ops, int i, int64_t opcode) {
  threadpool_handler h = builtin[i].handler;
  h.opcode = opcode;
  return tp_ops_add(ops, &h, builtin[i].missing);
}

int tp_builtin_add(tp_ops *ops, bool numbered) {
  int error = 0;
  for (int i = 0; i < BUILTIN_COUNT && !error; i++)
    error = add(ops, i, numbered ? builtin[i].handler.opcode : -1);
  return error;
}

int tp_builtin_number(tp_ops *ops, const char *name, uint32_t opcode) {
  if (strncmp(name, "handler_", 8) == 0) name += 8;
  for (int i = 0; i < BUILTIN_COUNT; i++)
    if (strcmp(builtin[i].handler.name, name) == 0) return add(ops, i, opcode);
  return ERR_INVALID_ARGUMENT;
}

bool tp_arg_whole(task_t *task, const char *name, uint64_t *value) {
  if (!threadpool_arg_is(task, name) || threadpool_arg_uint(task, name, value)) return true;
  threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"%s\": expected a whole number, 0 or more",
                  name);
  return false;
}
