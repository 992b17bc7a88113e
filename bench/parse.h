/* parse.h - the least that a request costs: its text is copied, and parsed in the copy.
 *
 * Depends on: yyjson. Used by: sequential.c, ours_json.c.
 */
#ifndef BENCH_PARSE_H
#define BENCH_PARSE_H

#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "harness.h"

typedef struct {
  char *text;
  yyjson_doc *doc;
} parsed;

static inline parsed parse_copy(const char *text, size_t length) {
  parsed p = {.text = malloc(length + YYJSON_PADDING_SIZE)};
  if (p.text == NULL) bench_fail("out of memory");
  memcpy(p.text, text, length);
  memset(p.text + length, 0, YYJSON_PADDING_SIZE);
  p.doc = yyjson_read_opts(p.text, length, YYJSON_READ_INSITU, NULL, NULL);
  if (p.doc == NULL) bench_fail("not JSON: %s", text);
  return p;
}

static inline void parse_free(parsed *p) {
  yyjson_doc_free(p->doc);
  free(p->text);
}

#endif
