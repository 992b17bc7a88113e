/* fuzz_request.c - any bytes for the decoder of requests: it must not crash, leak, or break what request.h promises.
 *
 * Run by: make fuzz (ONLY=request). Seeds: csrc/fuzz/corpus/request.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "ops/builtin.h"
#include "pool/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static tp_ops *ops;
  static const tp_calls_options limits = {.max_request_bytes = 3000, .max_depth = 8};
  if (!ops) must((ops = tp_ops_new()) && tp_builtin_add(ops, true) == 0);
  char *text = malloc(size + YYJSON_PADDING_SIZE);
  must(text != NULL);
  if (size) memcpy(text, data, size);
  memset(text + size, 0, YYJSON_PADDING_SIZE);
  tp_request r;
  tp_arena arena = {.used = 0};
  tp_say(0, "%s", "");
  int code = tp_request_decode(&r, ops, &limits, &arena, text, size);
  if (code) {
    const char *said = tp_said();
    size_t length = strlen(said);
    must(code == ERR_INVALID_JSON || code == ERR_UNKNOWN_OPCODE);
    must(length > 0 && length < sizeof(((result_t *)0)->error_msg));
    for (size_t at = 0; at < length;) {
      size_t bytes = tp_text_character(said + at, length - at);
      must(bytes > 0 && (unsigned char)said[at] >= ' ' && said[at] != 0x7F);
      at += bytes;
    }
  } else {
    must(size <= limits.max_request_bytes && r.doc && r.op && !r.op->missing);
    must(!r.args || yyjson_is_obj(r.args));
    must(r.priority >= TP_HIGH && r.priority <= TP_LOW);
    must(r.timeout_ms <= UINT32_MAX);
    size_t length; /* what was read can be written */
    const yyjson_alc memory = tp_json_memory(&arena);
    char *printed = yyjson_val_write_opts(yyjson_doc_get_root(r.doc), 0, &memory, &length, NULL);
    must(printed && length > 0);
    tp_arena_put(&arena, printed);
  }
  yyjson_doc_free(r.doc);
  free(text);
  return 0;
}
