#include "task/slab.h"

#include "base/alloc.h"

enum { PREFETCH = 16 };

void tp_slab_init(tp_slab *s, size_t record_size, size_t cold_size) {
  s->record_size = record_size;
  s->cold_size = cold_size;
}

static void free_magazines(tp_magazine *m) {
  for (tp_magazine *next; m; m = next) {
    next = m->next;
    tp_free(m);
  }
}

void tp_slab_cache_free(tp_slab_cache *c) {
  tp_free(c->loaded);
  tp_free(c->spare);
  *c = (tp_slab_cache){0};
}

static size_t segment_records(int k) {
  return (size_t)TP_SLAB_FIRST << k;
}
static size_t segment_size(const tp_slab *s, int k) {
  return segment_records(k) * (s->record_size + s->cold_size);
}

void tp_slab_free(tp_slab *s) {
  free_magazines(s->full);
  free_magazines(s->empty);
  for (int k = 0; k < TP_SLAB_SEGMENTS; k++)
    tp_unmap(tp_load(&s->segment[k], relaxed), segment_size(s, k));
}

/* Segment k begins at index 1024 * (2^k - 1). */
static int segment_of(uint32_t index, uint32_t *offset) {
  int k = 31 - __builtin_clz(index / TP_SLAB_FIRST + 1);
  *offset = index - TP_SLAB_FIRST * ((1u << k) - 1);
  return k;
}

tp_record *tp_slab_at(tp_slab *s, uint64_t id) {
  uint32_t offset;
  int k = segment_of((uint32_t)(id & (TP_SLAB_MAX_RECORDS - 1)), &offset);
  char *segment = tp_load(&s->segment[k], acquire); /* pairs with the release in reserve() */
  return segment ? (tp_record *)(segment + offset * s->record_size) : NULL;
}

void *tp_slab_cold(tp_slab *s, const tp_record *r) {
  uint32_t offset;
  int k = segment_of((uint32_t)(tp_load(&r->id, relaxed) & (TP_SLAB_MAX_RECORDS - 1)), &offset);
  char *segment = tp_load(&s->segment[k], relaxed); /* the record is in it */
  return segment + segment_records(k) * s->record_size + offset * s->cold_size;
}

uint32_t tp_slab_used(tp_slab *s) {
  tp_lock_acquire(&s->lock);
  uint32_t used = s->used;
  tp_lock_release(&s->lock);
  return used;
}

/* Lock held. How many of TP_MAGAZINE new records, from index s->used on, have memory. */
static uint32_t reserve(tp_slab *s) {
  uint32_t n = 0;
  for (; n < TP_MAGAZINE && s->used + n < TP_SLAB_MAX_RECORDS; n++) {
    uint32_t offset;
    int k = segment_of(s->used + n, &offset);
    if (tp_load(&s->segment[k], relaxed)) continue; /* written under the lock */
    char *segment = tp_map(segment_size(s, k));
    if (!segment) break;
    tp_store(&s->segment[k], segment, release); /* pairs with tp_slab_at */
  }
  return n;
}

static tp_magazine *pop(tp_magazine **list) {
  tp_magazine *m = *list;
  if (m) *list = m->next;
  return m;
}

static void push(tp_magazine **list, tp_magazine *m) {
  m->next = *list;
  *list = m;
}

/* Let c->loaded have at least one record. Under the lock are only a few words: what touches new memory is
 * done outside. */
static TP_NOINLINE bool refill(tp_slab *s, tp_slab_cache *c) {
  if (!c->loaded && !(c->loaded = tp_alloc(sizeof *c->loaded))) return false;
  if (c->spare && c->spare->count) {
    tp_magazine *m = c->loaded;
    c->loaded = c->spare;
    c->spare = m;
    return true;
  }
  tp_lock_acquire(&s->lock);
  tp_magazine *m = pop(&s->full);
  uint32_t from = s->used, n = 0;
  if (m) {
    push(&s->empty, c->loaded);
    c->loaded = m;
  } else {
    n = reserve(s);
    s->used += n;
  }
  tp_lock_release(&s->lock);
  m = c->loaded;
  for (uint32_t i = from; i < from + n; i++) {
    tp_record *r = tp_slab_at(s, i);
    tp_store(&r->id, i, relaxed); /* generation 0: never given out */
    m->record[m->count++] = r;
  }
  for (size_t i = m->count, k = 0; i > 0 && k < PREFETCH; k++) tp_prefetch(m->record[--i]);
  return m->count > 0;
}

tp_record *tp_slab_take(tp_slab *s, tp_slab_cache *c) {
  if (tp_unlikely(!c->loaded || !c->loaded->count) && !refill(s, c)) return NULL;
  tp_magazine *m = c->loaded;
  tp_record *r = m->record[--m->count];
  /* The next ones were last used on other cores: have their first line come while this one is filled in. */
  if (m->count > PREFETCH) tp_prefetch(m->record[m->count - PREFETCH]);
  /* L2. Relaxed: whoever looks an id up confirms it by the record's own state word. */
  tp_store(&r->id, tp_load(&r->id, relaxed) + TP_SLAB_GENERATION, relaxed);
  return r;
}

/* Let c->loaded have room for one. */
static TP_NOINLINE bool make_room(tp_slab *s, tp_slab_cache *c) {
  if (c->spare && c->spare->count < TP_MAGAZINE) {
    tp_magazine *m = c->loaded;
    c->loaded = c->spare;
    c->spare = m;
    return true;
  }
  tp_lock_acquire(&s->lock);
  tp_magazine *m = pop(&s->empty);
  tp_lock_release(&s->lock);
  if (!m && !(m = tp_alloc(sizeof *m))) return false;
  if (c->spare) {
    tp_lock_acquire(&s->lock);
    push(&s->full, c->spare);
    tp_lock_release(&s->lock);
  }
  c->spare = c->loaded;
  c->loaded = m;
  return true;
}

void tp_slab_give(tp_slab *s, tp_slab_cache *c, tp_record *r) {
  if (tp_load(&r->id, relaxed) + TP_SLAB_GENERATION >= TP_SLAB_MAX_ID) return; /* L2: retired */
  if (tp_unlikely(!c->loaded || c->loaded->count == TP_MAGAZINE) && !make_room(s, c)) return;
  c->loaded->record[c->loaded->count++] = r;
}
