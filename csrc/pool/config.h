/* config.h - reads the config file: `key=value` and `opcode=handler_name` (config/config is one).
 *
 *   C1  A line is blank, a comment (#), key=value, or opcode=handler. A # after a space or a tab ends the line.
 *   C2  Lines end with LF or CRLF, the last one with either or nothing. Spaces and tabs around a line and around
 *       its first = do not count, nor does a UTF-8 byte order mark.
 *   C3  Every mistake ends the reading: ERR_INVALID_ARGUMENT, and tp_said() is `file:line: thing: what is
 *       expected`. Nothing is guessed, nothing is ignored.
 *   C4  A key or an opcode is given once; only `handlers` may come again.
 *   C5  What is not given is 0 in `options`: the default (threadpool.h).
 *
 * Depends on: base/, threadpool.h. [any] thread; one tp_config belongs to one thread at a time.
 */
#ifndef TP_POOL_CONFIG_H
#define TP_POOL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "threadpool.h"

enum {
  TP_CONFIG_MAX_BYTES = 1 << 20, /* of a file */
  TP_CONFIG_MAX_LINE = 4096,     /* bytes of a line, without its end */
  TP_CONFIG_MAX_NAME = 255,      /* bytes of a handler's name */
  TP_CONFIG_MAX_OPCODE = 65535,
};

/* How a handler runs: `3=name`, `7=poll:name`, `8=blocking:name`. */
typedef enum { TP_CONFIG_PLAIN, TP_CONFIG_POLL, TP_CONFIG_BLOCKING } tp_config_kind;

typedef struct tp_config_handler {
  uint32_t opcode;
  tp_config_kind kind;
  const char *name; /* a C identifier; lies in tp_config.text */
  int line;
} tp_config_handler;

typedef struct tp_config_plugin {
  char *path; /* as dlopen wants it: with a slash in it */
  int line;
} tp_config_plugin;

/* All zero: no file at all, the defaults. Handlers and plug-ins are in the file's order. */
typedef struct tp_config {
  threadpool_options options;
  tp_config_handler *handlers;
  size_t handler_count;
  tp_config_plugin *plugins;
  size_t plugin_count;
  char *text; /* a copy of the file, cut into the names */
} tp_config;

/* Read `length` bytes of text. `file` is for messages, and plug-ins that are not absolute are relative to its
 * directory; NULL = "config". *c is written whatever it holds. 0, ERR_INVALID_ARGUMENT or ERR_MALLOC_FAILED; then *c
 * is all zero and tp_said() says why. */
int tp_config_parse(tp_config *c, const char *text, size_t length, const char *file);

/* The same with a file; ERR_IO: it cannot be read. */
int tp_config_read(tp_config *c, const char *path);

/* NULL, all zero, and twice are allowed; *c is all zero afterwards. */
void tp_config_free(tp_config *c);

#endif
