#include "task/slab.h"

#include "base/alloc.h"

void tp_slab_init(tp_slab *s, size_t record_size) {
  s->record_size = record_size;
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

void tp_slab_free(tp_slab *s) {
  free_magazines(s->full);
  free_magazines(s->empty);
  for (int i = 0; i < TP_SLAB_SEGMENTS; i++) tp_free(tp_load(&s->segment[i], relaxed));
}

/* Segment k begins at index 1024 * (2^k - 1). */
static char *segment_of(tp_slab *s, uint32_t index, uint32_t *offset) {
  uint32_t n = index / TP_SLAB_FIRST + 1;
  int k = 31 - __builtin_clz(n);
  *offset = index - TP_SLAB_FIRST * ((1u << k) - 1);
  return tp_load(&s->segment[k], acquire); /* pairs with the release in cut() */
}

tp_record *tp_slab_at(tp_slab *s, uint64_t id) {
  uint32_t index = (uint32_t)(id & (TP_SLAB_MAX_RECORDS - 1)), offset;
  char *segment = segment_of(s, index, &offset);
  return segment ? (tp_record *)(segment + offset * s->record_size) : NULL;
}

uint32_t tp_slab_used(tp_slab *s) {
  tp_lock_acquire(&s->lock);
  uint32_t used = s->used;
  tp_lock_release(&s->lock);
  return used;
}

/* Lock held. Fill an empty magazine with new records, as far as memory goes. */
static void cut(tp_slab *s, tp_magazine *m) {
  while (m->count < TP_MAGAZINE && s->used < TP_SLAB_MAX_RECORDS) {
    uint32_t offset;
    char *segment = segment_of(s, s->used, &offset);
    if (!segment) {
      int k = 31 - __builtin_clz(s->used / TP_SLAB_FIRST + 1);
      segment = tp_alloc(((size_t)TP_SLAB_FIRST << k) * s->record_size);
      if (!segment) return;
      tp_store(&s->segment[k], segment, release);
    }
    tp_record *r = (tp_record *)(segment + offset * s->record_size);
    tp_store(&r->id, s->used, relaxed); /* generation 0: never given out */
    s->used++;
    m->record[m->count++] = r;
  }
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

/* Let c->loaded have at least one record. */
static TP_NOINLINE bool refill(tp_slab *s, tp_slab_cache *c) {
  if (c->spare && c->spare->count) {
    tp_magazine *m = c->loaded;
    c->loaded = c->spare;
    c->spare = m;
    return true;
  }
  tp_lock_acquire(&s->lock);
  tp_magazine *m = pop(&s->full);
  if (m) {
    if (c->loaded) push(&s->empty, c->loaded);
    c->loaded = m;
  } else {
    if (!c->loaded) c->loaded = pop(&s->empty);
    if (!c->loaded) c->loaded = tp_alloc(sizeof *c->loaded);
    if (c->loaded) cut(s, c->loaded);
  }
  tp_lock_release(&s->lock);
  return c->loaded && c->loaded->count;
}

tp_record *tp_slab_take(tp_slab *s, tp_slab_cache *c) {
  if (tp_unlikely(!c->loaded || !c->loaded->count) && !refill(s, c)) return NULL;
  tp_record *r = c->loaded->record[--c->loaded->count];
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
  if (!m) m = tp_alloc(sizeof *m);
  if (m) {
    if (c->spare) push(&s->full, c->spare);
    c->spare = c->loaded;
    c->loaded = m;
  }
  tp_lock_release(&s->lock);
  return m != NULL;
}

void tp_slab_give(tp_slab *s, tp_slab_cache *c, tp_record *r) {
  if (tp_load(&r->id, relaxed) + TP_SLAB_GENERATION >= TP_SLAB_MAX_ID) return; /* L2: retired */
  if (tp_unlikely(!c->loaded || c->loaded->count == TP_MAGAZINE) && !make_room(s, c)) return;
  c->loaded->record[c->loaded->count++] = r;
}
