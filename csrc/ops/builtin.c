#include "ops/builtin.h"

#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "ops/builtin_list.h"
#include "pool/call.h"

/* What `how` in the list stands for. */
#define RUN(fn)      .handler.run = (fn)
#define POLL(fn)     .handler.poll = (fn)
#define BLOCKING(fn) .handler.run = (fn), .handler.blocking = true
#define MISSING(why) .missing = (why)
#define ROW(code, word, how, arguments, result)                                                    \
  {.handler.name = #word, .handler.opcode = (code), how},

static const struct {
  threadpool_handler handler;
  const char *missing;
} builtin[] = {TP_BUILTIN(ROW)};
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

const char *tp_builtin_names(void) {
#define NAME(code, word, how, arguments, result) ", handler_" #word
  static const char names[] = TP_BUILTIN(NAME);
#undef NAME
  return names + sizeof ", " - 1;
}

static bool is_among(const char *names, const char *name, size_t length) {
  for (const char *end; *names; names = end + strspn(end, ", ")) {
    end = names + strcspn(names, ",");
    if ((size_t)(end - names) == length && memcmp(names, name, length) == 0) return true;
  }
  return false;
}

bool tp_args_known(task_t *task, const char *names) {
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(task->args, i, n, key, value) {
    if (is_among(names, yyjson_get_str(key), yyjson_get_len(key))) continue;
    char shown[64];
    tp_text_show(shown, sizeof shown, yyjson_get_str(key), yyjson_get_len(key));
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "unknown argument \"%s\": expected %s", shown,
                    names);
    return false;
  }
  return true;
}

bool tp_arg_whole(task_t *task, const char *name, uint64_t *value) {
  if (!threadpool_arg_is(task, name) || threadpool_arg_uint(task, name, value)) return true;
  threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"%s\": expected a whole number, 0 or more",
                  name);
  return false;
}
