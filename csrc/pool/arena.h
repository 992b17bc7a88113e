/* arena.h - a little memory that is part of a record, for what is small and lives as long: the text of a request, its
 * parsed form, its result. What does not fit is a block (pool/blocks.h). So a small request allocates nothing: malloc was a third
 * of its cost, since what one thread allocates another one frees.
 *
 * One user at a time: who has the record. Depends on: pool/blocks.h.
 */
#ifndef TP_POOL_ARENA_H
#define TP_POOL_ARENA_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "pool/blocks.h"

enum { TP_ARENA_SIZE = 1024, TP_ARENA_GRAIN = 16 };

typedef struct tp_arena {
  uint32_t used;     /* multiple of the grain */
  uint32_t last;     /* where the newest piece begins */
  tp_blocks *blocks; /* NULL is allowed */
  _Alignas(TP_ARENA_GRAIN) char memory[TP_ARENA_SIZE];
} tp_arena;

static inline bool tp_arena_has(const tp_arena *a, const void *p) {
  return (uintptr_t)p - (uintptr_t)a->memory < TP_ARENA_SIZE;
}

/* NULL: out of memory. */
static inline void *tp_arena_get(tp_arena *a, size_t size) {
  if (size > TP_ARENA_SIZE - a->used) return tp_block_get(a->blocks, size);
  a->last = a->used;
  a->used += (uint32_t)(size + TP_ARENA_GRAIN - 1) & ~(uint32_t)(TP_ARENA_GRAIN - 1);
  return a->memory + a->last;
}

/* The newest piece grows and shrinks where it is. NULL: out of memory, p stays valid. */
static inline void *tp_arena_resize(tp_arena *a, void *p, size_t old_size, size_t size) {
  if (!tp_arena_has(a, p)) return tp_block_resize(a->blocks, p, size);
  if (p == a->memory + a->last && size <= TP_ARENA_SIZE - a->last) {
    a->used = a->last;
    return tp_arena_get(a, size);
  }
  if (size <= old_size) return p;
  void *larger = tp_arena_get(a, size);
  if (larger) memcpy(larger, p, old_size);
  return larger;
}

/* NULL is allowed. What is in the arena goes with the record. */
static inline void tp_arena_put(const tp_arena *a, void *p) {
  if (!tp_arena_has(a, p)) tp_block_put(a->blocks, p);
}

#endif
