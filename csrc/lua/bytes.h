/* bytes.h - text and encoded values that grow while they are written. One user at a time.
 *
 * Depends on: base/alloc.h. Used by: lua/.
 */
#ifndef TP_LUA_BYTES_H
#define TP_LUA_BYTES_H

#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"

typedef struct tp_bytes {
  char *data;
  size_t size, capacity;
  bool failed; /* out of memory: what is written since is lost */
} tp_bytes;

/* Room for n more; false: out of memory. */
static inline bool tp_bytes_room(tp_bytes *b, size_t n) {
  if (b->capacity - b->size >= n) return true;
  size_t capacity = b->capacity ? b->capacity : 256;
  while (capacity - b->size < n) capacity *= 2;
  char *data = tp_resize(b->data, capacity);
  if (!data) {
    b->failed = true;
    return false;
  }
  b->data = data;
  b->capacity = capacity;
  return true;
}

static inline void tp_bytes_put(tp_bytes *b, const void *data, size_t n) {
  if (n == 0 || !tp_bytes_room(b, n)) return;
  memcpy(b->data + b->size, data, n);
  b->size += n;
}

static inline void tp_bytes_char(tp_bytes *b, char c) {
  if (tp_bytes_room(b, 1)) b->data[b->size++] = c;
}

/* Empty it; what was large goes back. */
static inline void tp_bytes_clear(tp_bytes *b) {
  enum { KEEP = 1 << 20 };
  if (b->capacity > KEEP) {
    tp_put(b->data);
    b->data = NULL;
    b->capacity = 0;
  }
  b->size = 0;
  b->failed = false;
}

static inline void tp_bytes_free(tp_bytes *b) {
  tp_put(b->data);
  *b = (tp_bytes){0};
}

#endif
