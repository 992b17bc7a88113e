/* builtin_list.h - every built-in operation, in one list: the table (builtin.c) and its description in
 * docs/BYTECODE.md (config/build/generate-tables.sh) are made of it.
 *
 * X(opcode, name, how, arguments, result). `how`: RUN(handler), POLL(handler), BLOCKING(handler), or MISSING("why it is
 * not to be had"). In the texts, what stands in parentheses behind an optional argument is its default.
 * Depends on: nothing. Used by: ops/builtin.c.
 */
#ifndef TP_OPS_BUILTIN_LIST_H
#define TP_OPS_BUILTIN_LIST_H

/* clang-format off */
#define TP_BUILTIN(X)                                                                              \
  X(0, updater, MISSING("opcode 0 is reserved: no request can ask for it"), "", "")                \
  X(1, http_get, MISSING("HTTP is not part of this build"), "", "")                                \
  X(2, http_post, MISSING("HTTP is not part of this build"), "", "")                               \
  X(3, write_memory, RUN(tp_op_write_memory),                                                      \
    "`write_to`, a symbol; `data`, a string; `offset`, a whole number (0)",                        \
    "none; `data` is in the region, from `offset` on")                                             \
  X(4, read_memory, RUN(tp_op_read_memory),                                                        \
    "`read_from`, a symbol; `offset`, a whole number (0); `length`, a whole number (to the end)",  \
    "the bytes")                                                                                   \
  X(5, file_read, BLOCKING(tp_op_file_read),                                                       \
    "`path`, a string; `offset`, a whole number (0); `length`, a whole number (to the end); "      \
    "`max_bytes`, a whole number below 2^32 - 1 (67108864)",                                       \
    "the bytes; `ERR_IO` if there are more than `max_bytes`")                                      \
  X(6, file_write, BLOCKING(tp_op_file_write),                                                     \
    "`path`, a string; `data`, a string; `append` (false); `mode`, 0 to 4095 (420, which is 0644); " \
    "`make_directories` (false)",                                                                  \
    "none; the file is replaced whole, or with `append` grows")                                    \
  X(7, sleep, POLL(tp_op_sleep),                                                                   \
    "`ms`, a whole number below 2^32",                                                             \
    "none, so much later")                                                                         \
  X(8, echo, POLL(tp_op_echo),                                                                     \
    "`parts`, an array of strings; or anything else",                                              \
    "each part as a partial result; or the arguments as JSON")
/* clang-format on */

#endif
