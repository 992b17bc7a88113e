#include "pool/symbols.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/process.h"
#include "sched/guard.h"
#include "sync/lock.h"

enum {
  SHARDS = 16, /* counters of an entry; more threads than that share them */
  BLOCK = 64,  /* entries that are allocated at once: the counters of a shard fill whole lines */
  FIRST_BUCKETS = 64,
  NAME_WORDS = (TP_SYMBOL_NAME_MOST + 1) / 8,
  CLOSE_LOOKS = 4,   /* how often unregister looks for pins before it says busy */
  CLOSE_PAUSES = 50, /* in between */
};

enum { FREE, OPEN, CLOSING, PHASES = 4 };

/* A name as it is looked for: filled up with zeros. `tag` is its hash and, in the low byte, its length: names with
 * the same tag and words are the same. */
typedef struct key {
  uint64_t tag;
  uint64_t word[NAME_WORDS];
} key;

typedef struct block block;

/* All but `block` is read by anybody at any time (Y1), so it is atomic; Y2 says what it is worth. */
typedef struct entry {
  TP_ALIGNED _Atomic uint64_t state; /* lock held; CLOSING to OPEN: any */
  _Atomic uint64_t tag;              /* these three: lock held, while FREE */
  _Atomic(void *) ptr;
  _Atomic uint64_t size_and_flags;
  _Atomic uintptr_t next[2];         /* lock held; an entry, or the end of a chain (Y5, Y6) */
  block *block;                      /* constant */
  struct entry *next_free;           /* lock held */
  _Atomic uint64_t name[NAME_WORDS]; /* lock held, while FREE; as of key */
} entry;
_Static_assert(sizeof(entry) == 2 * TP_CACHE_LINE,
               "one line to pass by, one more to compare names");

/* The counters of one shard lie together, those of different shards apart: a thread's pins touch lines that only
 * threads of the same shard write. */
struct block {
  entry entry[BLOCK];
  TP_ALIGNED _Atomic uint32_t pins[SHARDS][BLOCK]; /* any (Y4) */
  symbol_table_t *table;
  block *older;
};

typedef struct buckets {
  struct buckets *older;
  unsigned shift;                      /* tag >> shift is the bucket: the highest bits */
  unsigned link;                       /* which of an entry's two */
  TP_ALIGNED _Atomic uintptr_t head[]; /* lock held */
} buckets;

struct symbol_table {
  TP_ALIGNED _Atomic(buckets *) buckets; /* lock held; read by anybody */
  TP_ALIGNED tp_lock lock;
  size_t count;                  /* lock held: names registered */
  block *blocks;                 /* lock held */
  unsigned cut;                  /* lock held: entries of blocks that were ever used */
  entry *first_free, *last_free; /* lock held: a queue (Y1) */
  _Atomic uint32_t threads;      /* that have got a shard here */
  unsigned made_in;              /* constant: tp_generation */
};

/* --- names -------------------------------------------------------------------------------------- */

static bool make_key(key *k, const char *name, size_t length) {
  if (length == 0 || length > TP_SYMBOL_NAME_MOST) return false;
  *k = (key){0};
  memcpy(k->word, name, length);
  uint64_t h = length;
  for (size_t i = 0; i <= length / 8; i++) {
    h = (h ^ k->word[i]) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 32;
  }
  h *= 0xd6e8feb86659fd93ull;
  k->tag = (h & ~0xffull) | length;
  return true;
}

static size_t words_of(const key *k) {
  return (k->tag & 0xff) / 8 + 1; /* with at least one zero behind the name */
}

/* A name as a message shows it: cut, and without what a terminal would obey. */
typedef struct shown {
  char text[TP_SYMBOL_NAME_MOST + 4];
} shown;

static bool is_control(char c) {
  return (unsigned char)c < 0x20 || c == 0x7f;
}

static shown show(const char *name, size_t length) {
  shown s = {""};
  size_t n = length < TP_SYMBOL_NAME_MOST ? length : TP_SYMBOL_NAME_MOST;
  for (size_t i = 0; i < n; i++) s.text[i] = is_control(name[i]) ? '?' : name[i];
  if (n < length) memcpy(s.text + n, "...", 4);
  return s;
}

static int missing(const symbol_table_t *t) {
  return tp_say(ERR_INVALID_ARGUMENT, "%s is NULL", t ? "symbol name" : "symbol table");
}

static int unknown(const char *name, size_t length) {
  if (length == 0) return tp_say(ERR_SYMBOL_NOT_FOUND, "unknown symbol: its name is empty");
  return tp_say(ERR_SYMBOL_NOT_FOUND, "unknown symbol: %s", show(name, length).text);
}

static int out_of_memory(const char *name) {
  return tp_say(ERR_MALLOC_FAILED, "out of memory for the symbol \"%s\"", name);
}

/* --- lookup ------------------------------------------------------------------------------------- */

static uint64_t phase_of(uint64_t state) {
  return state % PHASES;
}
static uint64_t with_phase(uint64_t state, uint64_t phase) {
  return state - phase_of(state) + phase;
}
static bool same_use(uint64_t before, uint64_t now) {
  return before / PHASES == now / PHASES && phase_of(now) != FREE;
}

/* Y5 */
static uintptr_t end_of(const _Atomic uintptr_t *head) {
  return (uintptr_t)head | 1;
}
static bool is_end(uintptr_t link) {
  return link & 1;
}

typedef struct found {
  entry *entry; /* NULL: there is none */
  uint64_t
      state; /* that it had before its name was read, not FREE; look again when all is read (Y2) */
} found;

/* Acquire: pairs with the release in fill(). Whoever reads a later use's word then sees a later state too (Y2). */
static bool has_name(entry *e, const key *k) {
  if (tp_load(&e->tag, acquire) != k->tag) return false;
  for (size_t i = 0; i < words_of(k); i++) {
    if (tp_load(&e->name[i], acquire) != k->word[i]) return false;
  }
  return true;
}

/* Why a name that is registered all the while is found, Y5 and Y6 in full. Let y be its entry, b its bucket. Links
 * are stored with release and loaded with acquire, and stores are made by one thread at a time: so the loads of one
 * walk are as if made at moments that do not go back. Say that an entry is *good* if the links lead from it to y or
 * to an end that is not b's. The head of b leads to y. And what is good stays so, whatever a writer does:
 *
 *   put n at the head of chain c   a way through n now goes on at c's head: to y if c = b, else to the end of c
 *   take n out of a chain          ways through its predecessor go past n, which is not y; n's own link stays,
 *                                  so whoever stands on it goes on as before
 *   make the next array            other links (Y6), this array's remain
 *   make the one after that        a way through an entry that is linked anew goes to an end in that array
 *
 * So a walk that has not met y ends elsewhere than at the end of b. It is no endless one: entries that are not linked
 * lead to linked ones, or to such as were taken out later than themselves. Who begins anew has missed another's whole
 * registration: somebody gets on. */
static found find(symbol_table_t *t, const key *k) {
  for (;;) {
    buckets *b = tp_load(&t->buckets, acquire); /* pairs with the release in grow() */
    const _Atomic uintptr_t *head = &b->head[k->tag >> b->shift];
    uintptr_t link = tp_load(head, acquire); /* pairs with the release in push() and link_out() */
    while (!is_end(link)) {
      entry *e = (entry *)link;
      uint64_t state = tp_load(&e->state, acquire); /* pairs with the release in fill() */
      if (phase_of(state) != FREE && has_name(e, k)) return (found){e, state};
      link = tp_load(&e->next[b->link], acquire); /* pairs with push() and link_out() */
    }
    if (tp_likely(link == end_of(head))) return (found){0};
  }
}

/* Y2. Relaxed: what was read before it was read with acquire, so this look comes after. */
static bool still(found f) {
  return same_use(f.state, tp_load(&f.entry->state, relaxed));
}

void *symbol_resolve(symbol_table_t *t, const char *name, uint32_t *out_size) {
  if (!t || !name) {
    missing(t);
    return NULL;
  }
  if (tp_forked(t->made_in)) {
    tp_say_forked();
    return NULL;
  }
  size_t length = strnlen(name, TP_SYMBOL_NAME_MOST + 1);
  key k;
  if (make_key(&k, name, length)) {
    for (found f; (f = find(t, &k)).entry;) {
      /* Acquire: pairs with the release in fill() (Y2). */
      void *ptr = tp_load(&f.entry->ptr, acquire);
      uint64_t size_and_flags = tp_load(&f.entry->size_and_flags, acquire);
      if (!still(f)) continue;
      if (out_size) *out_size = (uint32_t)(size_and_flags >> 32);
      return ptr;
    }
  }
  unknown(name, length);
  return NULL;
}

/* --- pins --------------------------------------------------------------------------------------- */

/* This thread's shard + 1; 0: it has none yet. The same for all tables, any will do. */
static _Thread_local uint32_t my_shard __attribute__((tls_model("initial-exec")));

static _Atomic uint32_t *my_counter(entry *e) {
  if (tp_unlikely(!my_shard))
    my_shard = 1 + tp_add(&e->block->table->threads, 1, relaxed) % SHARDS; /* a number, no more */
  return &e->block->pins[my_shard - 1][e - e->block->entry];
}

/* How many pins are held, the lock held; see close_entry about those that come and go meanwhile. Seq-cst: Y3; and it
 * acquires what was done with the region, pairs with the release in tp_symbol_unpin. */
static uint32_t count_pins(entry *e) {
  uint32_t sum = 0;
  for (int i = 0; i < SHARDS; i++) sum += tp_load(&e->block->pins[i][e - e->block->entry], seq_cst);
  return sum;
}

/* Y3, the pin's side. False: it is not that use of the entry any more, and nothing is held. */
static bool hold(found f) {
  _Atomic uint32_t *counter = my_counter(f.entry);
  tp_add(counter, 1, seq_cst);                      /* x. pairs with count_pins() */
  uint64_t now = tp_load(&f.entry->state, seq_cst); /* y. pairs with close_entry(), a */
  if (tp_unlikely(phase_of(now) == CLOSING) && same_use(f.state, now)) {
    /* z. The pin is first. Seq-cst, where acq_rel would do: rare. Pairs with d; if it fails, `now` is what came of
     * it: FREE, or OPEN by somebody else. */
    if (atomic_compare_exchange_strong(&f.entry->state, &now, with_phase(now, OPEN))) return true;
  }
  if (tp_likely(same_use(f.state, now))) return true;
  tp_sub(counter, 1, relaxed); /* Y4. Nothing was done with the region that others had to see */
  return false;
}

/* Y3, unregister's side; the lock is held, so nobody else makes it CLOSING. 0: it is FREE; else how many pins are
 * held, at least 1.
 *
 *   unregister, here                         pin, hold()
 *   a. state = CLOSING                       x. counter += 1
 *   b. sum of the counters                   y. state?  OPEN: held
 *   c. not 0: CAS CLOSING -> OPEN, busy      z.         CLOSING: CAS -> OPEN: held
 *   d. 0: CAS CLOSING -> FREE, over                     FREE: counter -= 1, not held
 *
 * All are seq-cst, so they have one order. Say that d succeeds; then no pin is held, nor will be:
 *
 *   a pin with y before a     x, y, a, b: the sum has its 1, and so it has also the -1 of its unpin, as the sum is 0
 *                             and no term is missing (below): it was given back
 *   a pin with y after a      y reads CLOSING, and z is before d or after it. Before: d fails, as nobody but us can
 *                             make it CLOSING again. After: z fails, and reads FREE. Or y reads OPEN that another's
 *                             z has stored: then d fails too. Or it is after d, and reads FREE.
 *
 * The sum is not taken at one moment. Could a -1 be seen in it whose +1 is not, and hide a pin that is held? That
 * pin was held, by y after a (else its +1 is seen), so the state was OPEN between a and its unpin; unpin releases,
 * b acquires, so d comes after and fails. A pin that was not held takes back what it added from the same counter,
 * where the -1 is not seen without the +1 (Y4). So each term is at least 0, and the sum 0 only if each is.
 *
 * A pin of an earlier use of the entry, asleep since it found it, may add its 1 for a moment, and take it back: then
 * the entry looks pinned. So we look some times before we say that it is busy; and entries wait long before they are
 * used again (Y1). */
static uint32_t close_entry(entry *e) {
  uint64_t open = tp_load(&e->state, relaxed); /* written under the lock, or OPEN again */
  uint64_t closing = with_phase(open, CLOSING);
  for (int look = 1;; look++) {
    tp_store(&e->state, closing, seq_cst); /* a. pairs with y */
    uint32_t pins = count_pins(e);         /* b. pairs with x */
    uint64_t expected = closing;
    uint64_t then = with_phase(open, pins ? OPEN : FREE);
    /* c, d. Pairs with z. If it fails, a pin was faster. */
    if (atomic_compare_exchange_strong(&e->state, &expected, then) && !pins) return 0;
    if (look == CLOSE_LOOKS) return (int32_t)pins > 0 ? pins : 1;
    for (int i = 0; i < CLOSE_PAUSES; i++) tp_pause();
  }
}

static int not_allowed(const char *name, size_t length, uint32_t flags) {
  return tp_say(ERR_INVALID_ARGUMENT, "symbol %s is %s-only", show(name, length).text,
                flags == SYMBOL_READ ? "read" : "write");
}

int tp_symbol_pin(symbol_table_t *t, const char *name, size_t length, uint32_t access,
                  tp_symbol_pin_t *pin) {
  *pin = (tp_symbol_pin_t){0};
  if (!t || !name) return missing(t);
  if (access < SYMBOL_READ || access > SYMBOL_READ_WRITE) {
    return tp_say(ERR_INVALID_ARGUMENT,
                  "access %u to symbol %s: it is SYMBOL_READ, SYMBOL_WRITE or both", access,
                  show(name, length).text);
  }
  key k;
  if (!make_key(&k, name, length)) return unknown(name, length);
  for (found f; (f = find(t, &k)).entry;) {
    /* Acquire: pairs with the release in fill() (Y2). */
    uint32_t flags = (uint32_t)tp_load(&f.entry->size_and_flags, acquire);
    if (tp_unlikely(access &
                    ~flags)) { /* before it counts: a pin that cannot be is in nobody's way */
      if (still(f)) return not_allowed(name, length, flags);
      continue;
    }
    if (!hold(f)) continue;
    /* Relaxed: it is held, so they do not change, and its state was acquired. */
    pin->ptr = tp_load(&f.entry->ptr, relaxed);
    pin->size = tp_load(&f.entry->size_and_flags, relaxed) >> 32;
    pin->opaque = f.entry;
    return ERR_SUCCESS;
  }
  return unknown(name, length);
}

void tp_symbol_unpin(tp_symbol_pin_t *pin) {
  entry *e = pin->opaque;
  *pin = (tp_symbol_pin_t){0};
  /* Y4. Release: what was done with the region, and z; pairs with count_pins(). */
  if (e) tp_sub(my_counter(e), 1, release);
}

/* --- writers: the lock is held ------------------------------------------------------------------- */

static void push(_Atomic uintptr_t *head, entry *e, unsigned link) {
  /* Release: pairs with find(). The head is read relaxed, as it is written under the lock. */
  tp_store(&e->next[link], tp_load(head, relaxed), release);
  tp_store(head, (uintptr_t)e, release);
}

static void link_in(symbol_table_t *t, entry *e) {
  buckets *b =
      tp_load(&t->buckets, relaxed); /* written under the lock, like all that is relaxed here */
  push(&b->head[tp_load(&e->tag, relaxed) >> b->shift], e, b->link);
}

static void link_out(symbol_table_t *t, entry *e) {
  buckets *b = tp_load(&t->buckets, relaxed);
  _Atomic uintptr_t *at = &b->head[tp_load(&e->tag, relaxed) >> b->shift];
  while (tp_load(at, relaxed) != (uintptr_t)e) {
    TP_ASSERT(!is_end(tp_load(at, relaxed)), "a registered entry is in its chain");
    at = &((entry *)tp_load(at, relaxed))->next[b->link];
  }
  tp_store(at, tp_load(&e->next[b->link], relaxed), release); /* pairs with find() */
}

static buckets *new_buckets(unsigned bits) {
  size_t n = (size_t)1 << bits;
  buckets *b = tp_alloc(sizeof *b + n * sizeof b->head[0]);
  if (!b) return NULL;
  b->shift = 64 - bits;
  for (size_t i = 0; i < n; i++) tp_store(&b->head[i], end_of(&b->head[i]), relaxed); /* not seen */
  return b;
}

/* Twice as many buckets. Without memory it stays as it is: slower, and tried again with the next name. */
static void grow(symbol_table_t *t) {
  buckets *old = tp_load(&t->buckets, relaxed);
  buckets *b = new_buckets(64 - old->shift + 1);
  if (!b) return;
  b->older = old;
  b->link = !old->link; /* Y6 */
  for (size_t i = 0; i < (size_t)1 << (64 - old->shift); i++) {
    uintptr_t link = tp_load(&old->head[i], relaxed);
    while (!is_end(link)) {
      entry *e = (entry *)link;
      push(&b->head[tp_load(&e->tag, relaxed) >> b->shift], e, b->link);
      link = tp_load(&e->next[old->link], relaxed);
    }
  }
  tp_store(&t->buckets, b, release); /* pairs with find() */
}

/* An entry that is FREE: a new one of the last block, else the one that is free for longest, else of a new block. */
static entry *take_entry(symbol_table_t *t) {
  entry *e = t->first_free;
  if (t->cut == BLOCK && e) {
    t->first_free = e->next_free;
    return e;
  }
  if (t->cut == BLOCK) {
    block *b = tp_alloc(sizeof *b);
    if (!b) return NULL;
    b->table = t;
    b->older = t->blocks;
    t->blocks = b;
    t->cut = 0;
  }
  e = &t->blocks->entry[t->cut++];
  e->block = t->blocks;
  return e;
}

static void give_entry(symbol_table_t *t, entry *e) {
  e->next_free = NULL;
  if (t->first_free)
    t->last_free->next_free = e;
  else
    t->first_free = e;
  t->last_free = e;
}

/* Y2, and link it in. A reader who was led here by an old link sees it FREE until it is found by its name as well.
 * Release: whoever reads one of these sees that the former use was over; pairs with has_name and the loads of region
 * and flags. */
static void fill(symbol_table_t *t, entry *e, const key *k, void *ptr, uint64_t size_and_flags) {
  tp_store(&e->tag, k->tag, release);
  for (size_t i = 0; i < words_of(k); i++) tp_store(&e->name[i], k->word[i], release);
  tp_store(&e->ptr, ptr, release);
  tp_store(&e->size_and_flags, size_and_flags, release);
  link_in(t, e);
  uint64_t state = tp_load(&e->state, relaxed);
  tp_store(&e->state, with_phase(state + PHASES, OPEN), release); /* pairs with find() */
}

static int enter(symbol_table_t *t, const key *k, const char *name, void *ptr,
                 uint64_t size_and_flags) {
  if (find(t, k).entry) {
    return tp_say(ERR_BUSY, "symbol \"%s\" is registered already: unregister it first", name);
  }
  entry *e = take_entry(t);
  if (!e) return out_of_memory(name);
  if (t->count >= (size_t)1 << (64 - tp_load(&t->buckets, relaxed)->shift)) grow(t);
  fill(t, e, k, ptr, size_and_flags);
  t->count++;
  return ERR_SUCCESS;
}

static int leave(symbol_table_t *t, const key *k, const char *name, size_t length) {
  entry *e = find(t, k).entry;
  if (!e) return unknown(name, length);
  uint32_t pins = close_entry(e);
  if (pins) {
    return tp_say(ERR_BUSY, "symbol \"%s\" is in use by %u task%s: unregister it when %s done",
                  name, pins, pins == 1 ? "" : "s", pins == 1 ? "it is" : "they are");
  }
  link_out(t, e);
  give_entry(t, e);
  t->count--;
  return ERR_SUCCESS;
}

/* --- the interface of writers -------------------------------------------------------------------- */

static int check_name(const char *name, size_t length) {
  if (length == 0) {
    return tp_say(ERR_INVALID_ARGUMENT, "symbol name is empty: 1 to %d bytes are needed",
                  TP_SYMBOL_NAME_MOST);
  }
  if (length > TP_SYMBOL_NAME_MOST) {
    return tp_say(ERR_INVALID_ARGUMENT, "symbol name is too long: %s has more than %d bytes",
                  show(name, length).text, TP_SYMBOL_NAME_MOST);
  }
  for (size_t i = 0; i < length; i++) {
    if (!is_control(name[i])) continue;
    return tp_say(ERR_INVALID_ARGUMENT,
                  "symbol name \"%s\" has a control character, 0x%02x, at byte %zu",
                  show(name, length).text, (unsigned char)name[i], i + 1);
  }
  return ERR_SUCCESS;
}

static int check_region(const char *name, void *ptr, uint32_t size, uint32_t flags) {
  if (!ptr) return tp_say(ERR_INVALID_ARGUMENT, "symbol \"%s\": its region is NULL", name);
  if (size == 0) return tp_say(ERR_INVALID_ARGUMENT, "symbol \"%s\": its size is 0", name);
  if ((uintptr_t)ptr > UINTPTR_MAX - (size - 1)) {
    return tp_say(ERR_INVALID_ARGUMENT,
                  "symbol \"%s\": its region is longer than memory, %u bytes from %p", name, size,
                  ptr);
  }
  if (flags < SYMBOL_READ || flags > SYMBOL_READ_WRITE) {
    return tp_say(ERR_INVALID_ARGUMENT,
                  "symbol \"%s\": flags are %u, not SYMBOL_READ, SYMBOL_WRITE or both", name,
                  flags);
  }
  return ERR_SUCCESS;
}

int symbol_register_flags(symbol_table_t *t, const char *name, void *ptr, uint32_t size,
                          uint32_t flags) {
  if (!t || !name) return missing(t);
  size_t length = strnlen(name, TP_SYMBOL_NAME_MOST + 1);
  int wrong = check_name(name, length);
  if (!wrong) wrong = check_region(name, ptr, size, flags);
  key k;
  if (wrong || !make_key(&k, name, length)) return wrong;
  if (tp_forked(t->made_in))
    return tp_say_forked(); /* before the lock: somebody may have held it */
  tp_library_probe();
  tp_lock_acquire(&t->lock);
  int code = enter(t, &k, name, ptr, (uint64_t)size << 32 | flags);
  tp_lock_release(&t->lock);
  return code;
}

int symbol_register(symbol_table_t *t, const char *name, void *ptr, uint32_t size) {
  return symbol_register_flags(t, name, ptr, size, SYMBOL_READ_WRITE);
}

int symbol_unregister(symbol_table_t *t, const char *name) {
  if (!t || !name) return missing(t);
  size_t length = strnlen(name, TP_SYMBOL_NAME_MOST + 1);
  key k;
  if (!make_key(&k, name, length)) return unknown(name, length);
  if (tp_forked(t->made_in)) return tp_say_forked();
  tp_library_probe();
  tp_lock_acquire(&t->lock);
  int code = leave(t, &k, name, length);
  tp_lock_release(&t->lock);
  return code;
}

/* --- the table ---------------------------------------------------------------------------------- */

symbol_table_t *tp_symbols_new(void) {
  symbol_table_t *t = tp_alloc(sizeof *t);
  buckets *b = t ? new_buckets(__builtin_ctz(FIRST_BUCKETS)) : NULL;
  if (!b) {
    tp_free(t);
    tp_say(ERR_MALLOC_FAILED, "out of memory for a table of symbols");
    return NULL;
  }
  tp_store(&t->buckets, b, relaxed); /* nobody sees the table yet */
  t->cut = BLOCK;
  t->made_in = tp_load(&tp_generation, relaxed);
  return t;
}

void tp_symbols_free(symbol_table_t *t) {
  if (!t) return;
  for (block *b = t->blocks, *older; b; b = older) {
    older = b->older;
    tp_free(b);
  }
  buckets *b = tp_load(&t->buckets, relaxed); /* nobody uses it any more */
  for (buckets *older; b; b = older) {
    older = b->older;
    tp_free(b);
  }
  tp_free(t);
}
