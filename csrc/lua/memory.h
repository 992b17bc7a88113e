/* memory.h - the memory of one Lua state, which can be given back whole: also that of a state which was left in the
 * middle of something, and cannot be closed.
 *
 * Small blocks come from chunks, by size class, so that they need no headers (Lua says how large a block was); others
 * from malloc, in a list. Depends on: base/. Used by: lua/vm.c. [who has the state]
 */
#ifndef TP_LUA_MEMORY_H
#define TP_LUA_MEMORY_H

#include <stddef.h>

enum { TP_MEMORY_GRAIN = 16, TP_MEMORY_SMALL = 512 };

typedef struct tp_memory_block {
  struct tp_memory_block *next, *prev;
} tp_memory_block;

typedef struct tp_memory {
  tp_memory_block *free[TP_MEMORY_SMALL / TP_MEMORY_GRAIN]; /* by class; linked by next */
  char *at, *end;                                           /* what is left of the newest chunk */
  tp_memory_block *chunks;                                  /* linked by next */
  tp_memory_block *large;
} tp_memory;

/* As of lua_Alloc; ud is a tp_memory, zero at first. */
void *tp_memory_alloc(void *ud, void *p, size_t old_size, size_t size);

/* All of it; it is as at first then. */
void tp_memory_free(tp_memory *m);

#endif
