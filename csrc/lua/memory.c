#include "lua/memory.h"

#include <string.h>

#include "base/alloc.h"

enum { CHUNK = 64 * 1024 };

static size_t class_of(size_t size) {
  return (size + TP_MEMORY_GRAIN - 1) / TP_MEMORY_GRAIN - 1;
}

static void *small(tp_memory *m, size_t class) {
  tp_memory_block *b = m->free[class];
  if (b) {
    m->free[class] = b->next;
    return b;
  }
  size_t size = (class + 1) * TP_MEMORY_GRAIN;
  if ((size_t)(m->end - m->at) < size) {
    tp_memory_block *chunk = tp_get(CHUNK);
    if (!chunk) return NULL;
    chunk->next = m->chunks;
    m->chunks = chunk;
    m->at = (char *)(chunk + 1);
    m->end = (char *)chunk + CHUNK;
  }
  void *p = m->at;
  m->at += size;
  return p;
}

static void *link_large(tp_memory *m, tp_memory_block *b) {
  b->prev = NULL;
  b->next = m->large;
  if (b->next) b->next->prev = b;
  m->large = b;
  return b + 1;
}

static void unlink_large(tp_memory *m, tp_memory_block *b) {
  if (b->prev)
    b->prev->next = b->next;
  else
    m->large = b->next;
  if (b->next) b->next->prev = b->prev;
}

static void *get(tp_memory *m, size_t size) {
  if (size <= TP_MEMORY_SMALL) return small(m, class_of(size));
  tp_memory_block *b = tp_get(sizeof *b + size);
  return b ? link_large(m, b) : NULL;
}

static void put(tp_memory *m, void *p, size_t size) {
  if (size <= TP_MEMORY_SMALL) {
    tp_memory_block *b = p;
    b->next = m->free[class_of(size)];
    m->free[class_of(size)] = b;
    return;
  }
  tp_memory_block *b = (tp_memory_block *)p - 1;
  unlink_large(m, b);
  tp_put(b);
}

static void *resize_large(tp_memory *m, void *p, size_t size) {
  tp_memory_block *b = (tp_memory_block *)p - 1;
  unlink_large(m, b);
  tp_memory_block *larger = tp_resize(b, sizeof *b + size);
  return larger ? link_large(m, larger) : (link_large(m, b), NULL);
}

void *tp_memory_alloc(void *ud, void *p, size_t old_size, size_t size) {
  tp_memory *m = ud;
  if (!p) return size ? get(m, size) : NULL;
  if (size == 0) {
    put(m, p, old_size);
    return NULL;
  }
  if (old_size > TP_MEMORY_SMALL && size > TP_MEMORY_SMALL) return resize_large(m, p, size);
  if (old_size <= TP_MEMORY_SMALL && size <= TP_MEMORY_SMALL &&
      class_of(old_size) == class_of(size))
    return p;
  void *moved = get(m, size);
  if (!moved) return NULL;
  memcpy(moved, p, old_size < size ? old_size : size);
  put(m, p, old_size);
  return moved;
}

static void free_list(tp_memory_block *b) {
  for (tp_memory_block *next; b; b = next) {
    next = b->next;
    tp_put(b);
  }
}

void tp_memory_free(tp_memory *m) {
  free_list(m->chunks);
  free_list(m->large);
  memset(m, 0, sizeof *m);
}
