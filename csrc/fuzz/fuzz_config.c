/* fuzz_config.c - any bytes for the reader of config files: it must not crash, leak, or break what config.h promises.
 *
 * Run by: make fuzz (ONLY=config). Seeds: csrc/fuzz/corpus/config. libFuzzer's data is as long as it says, so
 * AddressSanitizer sees a read behind it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "pool/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
  if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tp_config c;
  tp_say(0, "%s", "");
  int code = tp_config_parse(&c, (const char *)data, size, "dir/fuzz");
  if (code) { /* C3 */
    must(code == ERR_INVALID_ARGUMENT && strncmp(tp_said(), "dir/fuzz:", 9) == 0);
    must(strstr(tp_said(), "expected") != NULL);
    must(!c.text && !c.handlers && !c.plugins && !c.handler_count && !c.plugin_count);
    for (const char *s = tp_said(); *s; s++) must((unsigned char)*s >= ' ');
  }
  must(c.options.workers >= 0 && c.options.workers <= THREADPOOL_MAX_WORKERS);
  must(c.options.blocking >= 0 && c.options.blocking <= THREADPOOL_MAX_BLOCKING);
  must(c.options.drain_ms >= -1 && c.options.park_timeout_ms >= 0);
  int line = 0;
  for (size_t i = 0; i < c.handler_count; i++) {
    const tp_config_handler *h = &c.handlers[i];
    must(h->opcode <= TP_CONFIG_MAX_OPCODE && h->line > line);
    line = h->line;
    size_t length =
        strspn(h->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
    must(length > 0 && length <= TP_CONFIG_MAX_NAME && h->name[length] == 0);
    must(h->name[0] < '0' || h->name[0] > '9');
  }
  for (size_t i = 0; i < c.plugin_count; i++) must(strchr(c.plugins[i].path, '/') != NULL);
  tp_config_free(&c);
  return 0;
}
