#include "lua/protos.h"

#include <string.h>

#include "base/alloc.h"

/* FNV-1a: it is computed once a function. */
static uint32_t hash_of(const char *p, size_t size) {
  uint32_t h = 2166136261u;
  for (size_t i = 0; i < size; i++) h = (h ^ (uint8_t)p[i]) * 16777619u;
  return h;
}

static tp_proto *copy_of(const char *bytecode, size_t size, uint32_t hash) {
  tp_proto *p = tp_get(sizeof *p + size);
  if (!p) return NULL;
  p->hash = hash;
  p->size = size;
  memcpy(p->bytecode, bytecode, size);
  return p;
}

uint32_t tp_proto_number(tp_protos *ps, const char *bytecode, size_t size) {
  enum { SLOTS = TP_PROTOS_MOST * 2 };
  uint32_t hash = hash_of(bytecode, size), number = 0;
  tp_lock_acquire(&ps->lock);
  uint32_t slot = hash % SLOTS;
  for (; (number = ps->found[slot]); slot = (slot + 1) % SLOTS) {
    tp_proto *p = tp_load(&ps->at[number - 1], relaxed); /* written under the lock */
    if (p->hash == hash && p->size == size && memcmp(p->bytecode, bytecode, size) == 0) break;
  }
  tp_proto *p = NULL;
  if (!number && ps->count < TP_PROTOS_MOST && (p = copy_of(bytecode, size, hash))) {
    number = ++ps->count;
    ps->found[slot] = (uint16_t)number;
    tp_store(&ps->at[number - 1], p, release); /* pairs with tp_proto_at */
  }
  tp_lock_release(&ps->lock);
  return number;
}

void tp_protos_free(tp_protos *ps) {
  for (uint32_t i = 0; i < ps->count; i++) tp_put(tp_load(&ps->at[i], relaxed));
}
