/* builtin.h - the operations that every pool has, written against threadpool.h as a user's would be.
 *
 * Depends on: threadpool.h, pool/ops.h. Used by: api/.
 */
#ifndef TP_OPS_BUILTIN_H
#define TP_OPS_BUILTIN_H

#include "pool/ops.h"

/* [any] Add them all, with the opcodes of config/config, or (numbered false) by name only. 0 or a code after tp_say. */
int tp_builtin_add(tp_ops *ops, bool numbered);

/* [any] Give a built-in operation an opcode. `name` as in a config file: handler_echo, or echo. ERR_INVALID_ARGUMENT:
 * there is none of that name. */
int tp_builtin_number(tp_ops *ops, const char *name, uint32_t opcode);

/* [any] "handler_updater, handler_http_get, ...". */
const char *tp_builtin_names(void);

/* [H] Whether each argument is one of `names`, which lie between ", ". False: the task has failed; return. A misspelt
 * one that is optional would do something else than was asked for. */
bool tp_args_known(task_t *task, const char *names);

/* [H] An optional argument, a whole number: *value stays as it is if there is none. False: it has another type, and the
 * task has failed. */
bool tp_arg_whole(task_t *task, const char *name, uint64_t *value);

/* The handlers. */
int tp_op_echo(task_t *task, void **state);
int tp_op_sleep(task_t *task, void **state);
void tp_op_write_memory(task_t *task);
void tp_op_read_memory(task_t *task);
void tp_op_file_read(task_t *task);
void tp_op_file_write(task_t *task);

#endif
