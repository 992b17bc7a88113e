/* slab.h - records that are addressed by number and never move or go away while the pool lives.
 *
 * Free records are handed around in magazines of TP_MAGAZINE (Bonwick): a seat or an inlet takes and returns
 * records in its own magazine without any atomic operation, and exchanges full and empty magazines with
 * the depot under its lock, once in TP_MAGAZINE records. Depends on: base/, sync/lock.h.
 *
 * L1  A record's memory is valid until tp_slab_free: a stale pointer or number may be looked at, and the
 *     record's own id tells whether it is still the one that was meant.
 * L2  id = generation << 26 | index, 0 < id < 2^53: a double holds it exactly. Each allocation of a record
 *     raises its generation; after the last one the record is retired, so an id never comes twice.
 * L3  A cache (tp_slab_cache) has one user at a time: the thread in a seat, or the holder of its lock.
 */
#ifndef TP_TASK_SLAB_H
#define TP_TASK_SLAB_H

#include <stddef.h>

#include "base/atomic.h"
#include "sync/lock.h"

enum {
  TP_MAGAZINE = 62,
  TP_SLAB_INDEX_BITS = 26,
  TP_SLAB_SEGMENTS = 17, /* segment k holds 1024 << k records */
  TP_SLAB_FIRST = 1024,
};
#define TP_SLAB_MAX_RECORDS (1u << TP_SLAB_INDEX_BITS)
#define TP_SLAB_GENERATION  (1ull << TP_SLAB_INDEX_BITS)
#define TP_SLAB_MAX_ID      (1ull << 53)

/* What every record begins with. */
typedef struct tp_record {
  _Atomic uint64_t id; /* of its present or last use; written by whoever allocates it */
} tp_record;

typedef struct tp_magazine {
  struct tp_magazine *next;
  size_t count;
  tp_record *record[TP_MAGAZINE];
} tp_magazine;

typedef struct tp_slab_cache {
  tp_magazine *loaded, *spare;
} tp_slab_cache;

typedef struct tp_slab {
  size_t record_size, cold_size;
  tp_lock lock;              /* guards the depot and growth */
  tp_magazine *full, *empty; /* the depot */
  uint32_t used;             /* records cut from segments so far */
  _Atomic(char *) segment[TP_SLAB_SEGMENTS];
} tp_slab;

/* Each record has a cold part of cold_size bytes (may be 0), zero at first: for what most uses of a record do not
 * touch. They lie apart, so that the records are dense. */
void tp_slab_init(tp_slab *s, size_t record_size, size_t cold_size);
/* [any, nobody uses it any more] Caches are released with tp_slab_cache_free before. */
void tp_slab_free(tp_slab *s);
void tp_slab_cache_free(tp_slab_cache *c);

/* [user of the cache] A record with a fresh id; the rest of it is as its last user left it, or zero. NULL:
 * out of memory, or 2^26 records in use. */
tp_record *tp_slab_take(tp_slab *s, tp_slab_cache *c);

/* [user of the cache] Give a record back. Never fails: without memory for a magazine the record is lost to
 * use until the slab is freed. */
void tp_slab_give(tp_slab *s, tp_slab_cache *c, tp_record *r);

/* [any] The record with that id's index, or NULL if there never was one. Compare the id. */
tp_record *tp_slab_at(tp_slab *s, uint64_t id);

/* [who holds the record] Its cold part. */
void *tp_slab_cold(tp_slab *s, const tp_record *r);

/* [any] How many records have ever been cut: indices below it exist. */
uint32_t tp_slab_used(tp_slab *s);

#endif
