/* symbols.h - the pool's table of named memory regions, and pins that hold a region while a task uses it.
 *
 * symbol_register, symbol_register_flags, symbol_resolve and symbol_unregister are public (threadpool.h). Writers
 * take the table's lock; lookups and pins take none, never wait, and write no line that another thread reads, but
 * for the counter of a pin, of which each thread has its own. Depends on: base/, sync/lock.h, sched/guard.h.
 *
 * An entry is one region under one name. Its state is one word, generation << 2 | phase:
 *
 *              register                unregister
 *     FREE ---------------> OPEN ---------------------> CLOSING ------> FREE
 *  (generation + 1)           ^     (holder of lock)      |     no pin
 *                             +---------------------------+
 *                               a pin: whoever sees it first, the pin itself or unregister
 *
 * Y1  Entries and bucket arrays are freed with the table only: a reader may look at a stale one. Freed entries are
 *     used again, the one that was freed first before all others; no array is made but to double their number. So
 *     memory follows the largest number of names that there were at once, whatever was registered since.
 * Y2  Name, region and flags of an entry are written while it is FREE, and its generation rises with each use.
 *     Whoever reads them between two looks at the state that show the same generation, not FREE both times, has read
 *     what belongs together.
 * Y3  A pin adds 1 to a counter of the entry, then reads the state; unregister stores CLOSING, then sums up the
 *     counters; all four are seq-cst. A pin that reads CLOSING makes it OPEN by CAS; unregister makes it FREE by CAS,
 *     if the sum was 0. So one of the two is decided, without waiting (the proof is at close_entry).
 * Y4  A pin that fails takes its 1 back from the counter to which it was added. One that succeeded may be taken back
 *     from any other: only the sum counts, modulo 2^32.
 * Y5  A chain ends with the address of its own bucket, marked by bit 0; entries are put at its head. A reader who
 *     finds another end was led astray by an entry that was used again meanwhile, and begins anew.
 * Y6  An entry has two links. An array uses the one that the array before it did not: readers of the old array find
 *     its chains whole while the new one is made, and as long as the new one is in use.
 */
#ifndef TP_POOL_SYMBOLS_H
#define TP_POOL_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#include "threadpool.h"

enum { TP_SYMBOL_NAME_MOST = 63 };

/* A region that is held: it cannot be unregistered. */
typedef struct tp_symbol_pin {
  void *ptr;
  size_t size;
  void *opaque; /* the entry; NULL: nothing is held */
} tp_symbol_pin_t;

/* [any] An empty table, or NULL: out of memory. */
symbol_table_t *tp_symbols_new(void);
/* [any, nobody uses it any more] NULL is allowed. Pins that are still held are void: do not give them back. */
void tp_symbols_free(symbol_table_t *t);

/* [any] Hold the region with that name (length bytes, needing no zero behind) for `access`, SYMBOL_READ, SYMBOL_WRITE
 * or both. ERR_SYMBOL_NOT_FOUND; ERR_INVALID_ARGUMENT: the region's flags do not allow it, or misuse; the pin holds
 * nothing then, and tp_said() tells what was wrong. Never waits, but may look again when names come and go. */
int tp_symbol_pin(symbol_table_t *t, const char *name, size_t length, uint32_t access,
                  tp_symbol_pin_t *pin);

/* [any, also another thread than that which pinned] What was done with the region happens before its unregistration
 * ends. A pin that holds nothing stays as it is. */
void tp_symbol_unpin(tp_symbol_pin_t *pin);

#endif
