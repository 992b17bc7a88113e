#include "pool/blocks.h"

#include <stdint.h>
#include <string.h>

#include "base/alloc.h"
#include "sync/lock.h"

enum { SHARDS = 16, COMMON = SHARDS };

/* What is before the memory that is given out; a line, so that who keeps it need not wait for what others have written
 * behind it. */
typedef struct block {
  size_t size;        /* with this; B2 */
  struct block *next; /* while it is kept */
  int home;           /* the shard of the thread that got it: its cache has most of it */
  char rest[TP_CACHE_LINE - sizeof(size_t) - sizeof(void *) - sizeof(int)];
} block;

typedef struct shard {
  TP_ALIGNED tp_lock lock;
  size_t bytes;                /* lock held, as all of it */
  block *kept[TP_BLOCK_SIZES]; /* the newest one is the first to be used again */
} shard;

struct tp_blocks {
  shard shards[SHARDS + 1];
};

/* B1 */
static size_t most_of(int i) {
#ifdef __SANITIZE_ADDRESS__
  return 0 * (size_t)i;
#else
  return i == COMMON ? TP_BLOCKS_COMMON : TP_BLOCKS_OWN;
#endif
}

static int my_shard(void) {
  static _Atomic unsigned threads;
  static _Thread_local unsigned number __attribute__((tls_model("initial-exec")));
  if (tp_unlikely(!number)) number = tp_add(&threads, 1, relaxed) + 1; /* only to spread them */
  return (int)(number % SHARDS);
}

/* TP_BLOCK_SIZES: it is not kept. */
static int class_of(size_t size) {
  int c = 0;
  while (c < TP_BLOCK_SIZES && size > (size_t)TP_BLOCK_LEAST << c) c++;
  return c;
}

static block *take(tp_blocks *b, int i, int c) {
  shard *s = &b->shards[i];
  tp_lock_acquire(&s->lock);
  block *found = s->kept[c];
  if (found) {
    s->kept[c] = found->next;
    s->bytes -= found->size;
  }
  tp_lock_release(&s->lock);
  return found;
}

static bool keep(tp_blocks *b, int i, int c, block *k) {
  shard *s = &b->shards[i];
  tp_lock_acquire(&s->lock);
  bool room = s->bytes + k->size <= most_of(i);
  if (room) {
    k->next = s->kept[c];
    s->kept[c] = k;
    s->bytes += k->size;
  }
  tp_lock_release(&s->lock);
  return room;
}

tp_blocks *tp_blocks_new(void) {
  return tp_alloc(sizeof(tp_blocks));
}

void tp_blocks_free(tp_blocks *b) {
  for (int i = 0; b && i <= SHARDS; i++) {
    for (int c = 0; c < TP_BLOCK_SIZES; c++) {
      for (block *k = b->shards[i].kept[c], *next; k; k = next) {
        next = k->next;
        tp_put(k);
      }
    }
  }
  tp_free(b);
}

void *tp_block_get(tp_blocks *b, size_t size) {
  if (size > SIZE_MAX - sizeof(block)) return NULL;
  size += sizeof(block);
  int c = b ? class_of(size) : TP_BLOCK_SIZES;
  block *k = NULL;
  int home = my_shard();
  if (c < TP_BLOCK_SIZES) {
    size = (size_t)TP_BLOCK_LEAST << c;
    k = take(b, home, c);
    if (!k) k = take(b, COMMON, c);
  }
  if (!k && !(k = tp_get(size))) return NULL;
  k->size = size;
  k->home = home;
  return k + 1;
}

void *tp_block_resize(tp_blocks *b, void *p, size_t size) {
  block *k = (block *)p - 1;
  if (size > SIZE_MAX - sizeof(block)) return NULL;
  if (b && class_of(k->size) < TP_BLOCK_SIZES) {
    if (size <= k->size - sizeof(block)) return p;
    void *larger = tp_block_get(b, size);
    if (!larger) return NULL;
    memcpy(larger, p, k->size - sizeof(block));
    tp_block_put(b, p);
    return larger;
  }
  k = tp_resize(k, size + sizeof(block));
  if (!k) return NULL;
  k->size = size + sizeof(block);
  return k + 1;
}

void tp_block_put(tp_blocks *b, void *p) {
  if (!p) return;
  block *k = (block *)p - 1;
  int c = class_of(k->size);
  bool kept = b && c < TP_BLOCK_SIZES && k->size == (size_t)TP_BLOCK_LEAST << c &&
              (keep(b, k->home, c, k) || keep(b, COMMON, c, k));
  if (!kept) tp_put(k);
}
