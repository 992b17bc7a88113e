/* threadpool_errors.h - every error code of the library, in one list.
 *
 * Included by threadpool.h. The list also makes the names and texts (base/error.c), so a code
 * cannot exist without both. Codes are stable: new ones are added at the end.
 */
#ifndef THREADPOOL_ERRORS_H
#define THREADPOOL_ERRORS_H

#define THREADPOOL_ERRORS(X)                                                                       \
  X(ERR_SUCCESS, 0, "success")                                                                     \
  X(ERR_UNKNOWN_OPCODE, -1, "unknown opcode")                                                      \
  X(ERR_INVALID_JSON, -2, "invalid JSON")                                                          \
  X(ERR_SYMBOL_NOT_FOUND, -3, "symbol not found")                                                  \
  X(ERR_MALLOC_FAILED, -4, "out of memory, or the system refused another thread")                  \
  X(ERR_HANDLER_CRASH, -5, "handler crashed")                                                      \
  X(ERR_TIMEOUT, -6, "timed out")                                                                  \
  X(ERR_QUEUE_FULL, -7, "limit reached: too much is pending or blocked at once")                   \
  X(ERR_CANCELLED, -8, "cancelled")                                                                \
  X(ERR_SHUTDOWN, -9, "the pool is shutting down")                                                 \
  X(ERR_INVALID_ARGUMENT, -10, "invalid argument")                                                 \
  X(ERR_WRONG_THREAD, -11, "called from a thread that may not make this call")                     \
  X(ERR_IO, -12, "input or output failed")                                                         \
  X(ERR_BUSY, -13, "in use by somebody else")                                                      \
  X(ERR_FORKED, -14, "the pool belongs to the parent of this process")                             \
  X(ERR_LUA, -15, "error in a Lua function")                                                       \
  X(ERR_CLOSED, -16, "the channel is closed")

#define THREADPOOL_ERROR_ENUM(name, code, text) name = code,
enum threadpool_error { THREADPOOL_ERRORS(THREADPOOL_ERROR_ENUM) };
#undef THREADPOOL_ERROR_ENUM

#endif
