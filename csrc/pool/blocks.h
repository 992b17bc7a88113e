/* blocks.h - memory for what does not fit into a record: large requests, what was parsed of them, large results.
 *
 * As of tp_get, but blocks of up to TP_BLOCK_MOST bytes are kept for the next request: a few for each thread, some
 * more for all. What one thread allocates another one frees, some at a time; malloc then gives the pages back to the
 * system and has them cleared again: half of the time that a request of 4 KB took.
 *
 * Sizes are 5 KB, 10 KB and so on: values take four times the bytes of a dense text, so they grow where they are, and
 * a text of a power of two has its block to itself.
 *
 * B1  At most TP_BLOCKS_OWN bytes are kept for the thread that got them (for 1/16 of the threads, if
 *     there are more), whoever gives them back, and TP_BLOCKS_COMMON for all. Nothing is kept under AddressSanitizer, which sees what becomes of it then.
 * B2  A block begins with its size, and belongs to no tp_blocks but while it is kept there.
 *
 * Depends on: base/alloc.h, sync/lock.h. Used by: pool/arena.h.
 */
#ifndef TP_POOL_BLOCKS_H
#define TP_POOL_BLOCKS_H

#include <stddef.h>

enum {
  TP_BLOCK_LEAST = 5 << 10,
  TP_BLOCK_SIZES = 5,
  TP_BLOCK_MOST = TP_BLOCK_LEAST << (TP_BLOCK_SIZES - 1),
  TP_BLOCKS_OWN = 512 << 10,
  TP_BLOCKS_COMMON = 4 << 20,
};

typedef struct tp_blocks tp_blocks;

/* [any] NULL: out of memory. */
tp_blocks *tp_blocks_new(void);
/* [any, nobody uses it any more] NULL is allowed. */
void tp_blocks_free(tp_blocks *b);

/* [any] As tp_get, tp_resize and tp_put, which are called if nothing is kept; b NULL: nothing is ever kept. */
void *tp_block_get(tp_blocks *b, size_t size);
void *tp_block_resize(tp_blocks *b, void *p, size_t size);
void tp_block_put(tp_blocks *b, void *p);

#endif
