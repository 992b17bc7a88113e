/* request.h - decodes the text of a request. Format: docs/BYTECODE.md.
 *
 * Depends on: base/, pool/call.h, pool/ops.h, yyjson. Used by: pool/call.c, pool/handler.c, ops/.
 */
#ifndef TP_POOL_REQUEST_H
#define TP_POOL_REQUEST_H

#include "pool/call.h"

typedef struct tp_request {
  const tp_op *op;
  yyjson_doc *doc; /* NULL if the text is no JSON; to be freed by the caller, also after an error */
  yyjson_val *args;
  uint64_t outer_id; /* known as soon as the text could be parsed */
  int priority;
  uint64_t timeout_ms; /* 0: none */
} tp_request;

/* For yyjson. What it has written is freed with tp_arena_put. */
yyjson_alc tp_json_memory(tp_arena *arena);

/* [any] Decode `length` bytes of text, in place: there are YYJSON_PADDING_SIZE bytes more, and the text is changed.
 * 0, or a code after tp_say, which names the member and what was expected: at most 255 bytes of
 * printable UTF-8, whatever the text holds. */
int tp_request_decode(tp_request *r, const tp_ops *ops, const tp_calls_options *limits,
                      tp_arena *arena, char *text, size_t length);

#endif
