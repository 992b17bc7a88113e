/* test_symbols.c - named regions: names, flags, pins, growth, names that come and go under readers. */
#include "test/help.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "pool/symbols.h"

static symbol_table_t *table;
static char memory[4096];

static int begin(void **state) {
  (void)state;
  table = tp_symbols_new();
  return table ? 0 : -1;
}
static int end(void **state) {
  (void)state;
  tp_fail_at(0);
  tp_symbols_free(table);
  return 0;
}

static int pin(const char *name, uint32_t access, tp_symbol_pin_t *p) {
  return tp_symbol_pin(table, name, strlen(name), access, p);
}
#define assert_said(text) assert_string_equal(tp_said(), text)

static void a_region_is_found_by_its_name(void **state) {
  (void)state;
  uint32_t size = 7;
  assert_null(symbol_resolve(table, "a", &size));
  assert_said("unknown symbol: a");
  assert_int_equal(size, 7);
  assert_int_equal(symbol_register(table, "a", memory, 100), 0);
  assert_int_equal(symbol_register(table, "b", memory + 100, UINT32_MAX), 0);
  assert_ptr_equal(symbol_resolve(table, "a", &size), memory);
  assert_int_equal(size, 100);
  assert_ptr_equal(symbol_resolve(table, "b", &size), memory + 100);
  assert_int_equal(size, UINT32_MAX);
  assert_ptr_equal(symbol_resolve(table, "b", NULL), memory + 100);
  assert_null(symbol_resolve(table, "ab", NULL));

  assert_int_equal(symbol_unregister(table, "a"), 0);
  assert_null(symbol_resolve(table, "a", NULL));
  assert_int_equal(symbol_unregister(table, "a"), ERR_SYMBOL_NOT_FOUND);
  assert_said("unknown symbol: a");
  assert_ptr_equal(symbol_resolve(table, "b", NULL), memory + 100);
  assert_int_equal(symbol_register(table, "a", memory + 5, 5), 0);
  assert_ptr_equal(symbol_resolve(table, "a", &size), memory + 5);
  assert_int_equal(size, 5);
}

static void a_name_is_taken_once(void **state) {
  (void)state;
  assert_int_equal(symbol_register(table, "buffer", memory, 10), 0);
  assert_int_equal(symbol_register(table, "buffer", memory + 10, 20), ERR_BUSY);
  assert_said("symbol \"buffer\" is registered already: unregister it first");
  uint32_t size;
  assert_ptr_equal(symbol_resolve(table, "buffer", &size), memory);
  assert_int_equal(size, 10);
  /* Two names for one region, two tables with one name: why not. */
  assert_int_equal(symbol_register(table, "buffer2", memory, 10), 0);
  symbol_table_t *other = tp_symbols_new();
  assert_non_null(other);
  assert_int_equal(symbol_register(other, "buffer", memory + 10, 10), 0);
  assert_ptr_equal(symbol_resolve(other, "buffer", NULL), memory + 10);
  assert_ptr_equal(symbol_resolve(table, "buffer", NULL), memory);
  tp_symbols_free(other);
}

static void a_name_has_1_to_63_bytes(void **state) {
  (void)state;
  char name[200];
  for (size_t n = 1; n <= 63; n++) { /* each is the beginning of the next */
    memset(name, 'x', n);
    name[n] = 0;
    assert_int_equal(symbol_register(table, name, memory + n, 1), 0);
  }
  for (size_t n = 1; n <= 63; n++) {
    name[n] = 0;
    assert_ptr_equal(symbol_resolve(table, name, NULL), memory + n);
    name[n] = 'x';
    tp_symbol_pin_t p; /* its length counts, not a zero */
    assert_int_equal(tp_symbol_pin(table, name, n, SYMBOL_READ, &p), 0);
    assert_ptr_equal(p.ptr, memory + n);
    tp_symbol_unpin(&p);
  }
  memset(name, 'y', sizeof name);
  for (size_t n = 64; n < sizeof name; n++) {
    name[n] = 0;
    assert_int_equal(symbol_register(table, name, memory, 1), ERR_INVALID_ARGUMENT);
    assert_said("symbol name is too long: "
                "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy... has more than "
                "63 bytes");
    assert_null(symbol_resolve(table, name, NULL));
    assert_int_equal(symbol_unregister(table, name), ERR_SYMBOL_NOT_FOUND);
    tp_symbol_pin_t p;
    assert_int_equal(tp_symbol_pin(table, name, n, SYMBOL_READ, &p), ERR_SYMBOL_NOT_FOUND);
    assert_said("unknown symbol: "
                "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy...");
    name[n] = 'y';
  }
  assert_int_equal(symbol_register(table, "", memory, 1), ERR_INVALID_ARGUMENT);
  assert_said("symbol name is empty: 1 to 63 bytes are needed");
  assert_null(symbol_resolve(table, "", NULL));
  assert_said("unknown symbol: its name is empty");
  assert_int_equal(symbol_unregister(table, ""), ERR_SYMBOL_NOT_FOUND);
}

static void a_name_has_any_bytes_but_control_characters(void **state) {
  (void)state;
  for (int c = 1; c < 256; c++) {
    char name[] = {'a', (char)c, 'b', 0};
    bool control = c < 32 || c == 127;
    assert_int_equal(symbol_register(table, name, memory + c, 1),
                     control ? ERR_INVALID_ARGUMENT : 0);
    assert_ptr_equal(symbol_resolve(table, name, NULL), control ? NULL : memory + c);
  }
  assert_int_equal(symbol_register(table, "a\033[2J", memory, 1), ERR_INVALID_ARGUMENT);
  assert_said("symbol name \"a?[2J\" has a control character, 0x1b, at byte 2");
  assert_null(symbol_resolve(table, "a\033[2J", NULL));
  assert_said("unknown symbol: a?[2J");
  assert_int_equal(symbol_register(table, "größe ☃", memory, 1), 0);
  assert_ptr_equal(symbol_resolve(table, "größe ☃", NULL), memory);
  /* A zero in a name that comes with its length does not end it. */
  tp_symbol_pin_t p;
  assert_int_equal(symbol_register(table, "z", memory, 1), 0);
  assert_int_equal(tp_symbol_pin(table, "z\0", 2, SYMBOL_READ, &p), ERR_SYMBOL_NOT_FOUND);
  assert_int_equal(tp_symbol_pin(table, "z\0\0\0\0\0\0\0\0", 9, SYMBOL_READ, &p),
                   ERR_SYMBOL_NOT_FOUND);
  assert_int_equal(tp_symbol_pin(table, "zz", 1, SYMBOL_READ, &p), 0);
  tp_symbol_unpin(&p);
}

static void misuse_is_an_error(void **state) {
  (void)state;
  assert_int_equal(symbol_register(NULL, "a", memory, 1), ERR_INVALID_ARGUMENT);
  assert_said("symbol table is NULL");
  assert_int_equal(symbol_register(table, NULL, memory, 1), ERR_INVALID_ARGUMENT);
  assert_said("symbol name is NULL");
  assert_int_equal(symbol_register(table, "a", NULL, 1), ERR_INVALID_ARGUMENT);
  assert_said("symbol \"a\": its region is NULL");
  assert_int_equal(symbol_register(table, "a", memory, 0), ERR_INVALID_ARGUMENT);
  assert_said("symbol \"a\": its size is 0");
  assert_int_equal(symbol_register(table, "a", (void *)(UINTPTR_MAX - 9), 11),
                   ERR_INVALID_ARGUMENT);
  assert_int_equal(symbol_register_flags(table, "a", memory, 1, 0), ERR_INVALID_ARGUMENT);
  assert_said("symbol \"a\": flags are 0, not SYMBOL_READ, SYMBOL_WRITE or both");
  assert_int_equal(symbol_register_flags(table, "a", memory, 1, 4), ERR_INVALID_ARGUMENT);
  assert_int_equal(symbol_register_flags(table, "a", memory, 1, 7), ERR_INVALID_ARGUMENT);
  assert_null(symbol_resolve(table, "a", NULL)); /* none of them has left anything */
  assert_null(symbol_resolve(NULL, "a", NULL));
  assert_null(symbol_resolve(table, NULL, NULL));
  assert_int_equal(symbol_unregister(NULL, "a"), ERR_INVALID_ARGUMENT);
  assert_int_equal(symbol_unregister(table, NULL), ERR_INVALID_ARGUMENT);

  tp_symbol_pin_t p = {memory, 1, memory};
  assert_int_equal(tp_symbol_pin(NULL, "a", 1, SYMBOL_READ, &p), ERR_INVALID_ARGUMENT);
  assert_null(p.opaque);
  assert_int_equal(tp_symbol_pin(table, NULL, 1, SYMBOL_READ, &p), ERR_INVALID_ARGUMENT);
  assert_int_equal(pin("a", 0, &p), ERR_INVALID_ARGUMENT);
  assert_int_equal(pin("a", 4, &p), ERR_INVALID_ARGUMENT);
  assert_int_equal(pin("", SYMBOL_READ, &p), ERR_SYMBOL_NOT_FOUND);
  assert_int_equal(pin("a", SYMBOL_READ, &p), ERR_SYMBOL_NOT_FOUND);
  assert_said("unknown symbol: a");
  tp_symbol_unpin(&p); /* holds nothing */
  tp_symbols_free(NULL);
}

static void flags_say_what_a_pin_may_do(void **state) {
  (void)state;
  assert_int_equal(symbol_register_flags(table, "r", memory, 1, SYMBOL_READ), 0);
  assert_int_equal(symbol_register_flags(table, "w", memory, 2, SYMBOL_WRITE), 0);
  assert_int_equal(symbol_register(table, "rw", memory, 3), 0);
  const char *name[] = {"", "r", "w", "rw"};
  for (uint32_t flags = 1; flags <= 3; flags++) {
    for (uint32_t access = 1; access <= 3; access++) {
      tp_symbol_pin_t p;
      int code = pin(name[flags], access, &p);
      assert_int_equal(code, (access & ~flags) ? ERR_INVALID_ARGUMENT : 0);
      if (code) {
        assert_said(flags == SYMBOL_READ ? "symbol r is read-only" : "symbol w is write-only");
        assert_null(p.ptr);
        assert_null(p.opaque);
      } else {
        assert_ptr_equal(p.ptr, memory);
        assert_int_equal(p.size, flags);
      }
      tp_symbol_unpin(&p);
    }
    assert_int_equal(symbol_unregister(table, name[flags]), 0); /* none is left held */
  }
}

static void what_is_pinned_stays(void **state) {
  (void)state;
  tp_symbol_pin_t p[3];
  assert_int_equal(symbol_register(table, "X", memory, 9), 0);
  assert_int_equal(symbol_register(table, "Y", memory, 9), 0);
  for (int i = 0; i < 3; i++) assert_int_equal(pin("X", SYMBOL_READ_WRITE, &p[i]), 0);
  assert_int_equal(symbol_unregister(table, "X"), ERR_BUSY);
  assert_said("symbol \"X\" is in use by 3 tasks: unregister it when they are done");
  assert_int_equal(symbol_unregister(table, "Y"), 0); /* its neighbour */
  tp_symbol_unpin(&p[1]);
  tp_symbol_unpin(&p[0]);
  assert_int_equal(symbol_unregister(table, "X"), ERR_BUSY);
  assert_said("symbol \"X\" is in use by 1 task: unregister it when it is done");
  assert_ptr_equal(symbol_resolve(table, "X", NULL), memory); /* and is there as before */
  assert_int_equal(pin("X", SYMBOL_READ, &p[0]), 0);
  tp_symbol_unpin(&p[2]);
  assert_int_equal(symbol_unregister(table, "X"), ERR_BUSY);
  tp_symbol_unpin(&p[0]);
  tp_symbol_unpin(&p[0]); /* holds nothing any more */
  assert_int_equal(symbol_unregister(table, "X"), 0);
  assert_int_equal(pin("X", SYMBOL_READ, &p[0]), ERR_SYMBOL_NOT_FOUND);
}

enum { HELD = 40 };
static tp_symbol_pin_t held[HELD];

static void *pins_one(void *arg) {
  tp_symbol_pin_t *p = arg;
  test_must(pin("X", SYMBOL_READ, p) == 0);
  return NULL;
}
static void *unpins_one(void *arg) {
  tp_symbol_unpin(arg);
  return NULL;
}
static void on_another_thread(void *(*fn)(void *), void *arg) {
  pthread_t t;
  assert_int_equal(pthread_create(&t, NULL, fn, arg), 0);
  pthread_join(t, NULL);
}

/* More threads than counters, each pin given back by another thread: the sum is exact after each. */
static void a_pin_may_be_given_back_by_another_thread(void **state) {
  (void)state;
  char text[100];
  assert_int_equal(symbol_register(table, "X", memory, 9), 0);
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < HELD; i++) on_another_thread(pins_one, &held[i]);
    for (int i = 0; i < HELD; i++) {
      assert_int_equal(symbol_unregister(table, "X"), ERR_BUSY);
      snprintf(text, sizeof text, "symbol \"X\" is in use by %d task", HELD - i);
      assert_memory_equal(tp_said(), text, strlen(text));
      on_another_thread(unpins_one, &held[(i * 7 + round) % HELD]);
    }
    if (round == 2) break;
    pins_one(&held[0]);
    on_another_thread(unpins_one, &held[0]);
  }
  assert_int_equal(symbol_unregister(table, "X"), 0);
}

static const char *numbered(char *name, long i) {
  sprintf(name, "symbol number %ld", i);
  return name;
}

static void it_grows(void **state) {
  (void)state;
  long n = test_size(10000, 100000);
  char name[64];
  char *base = memory; /* addresses that are not used, but as values */
  for (long i = 0; i < n; i++) {
    assert_int_equal(symbol_register(table, numbered(name, i), base + i % 4096, (uint32_t)i + 1),
                     0);
    if ((i & (i - 1)) != 0) continue;
    for (long k = 0; k <= i; k++) {
      uint32_t size;
      assert_non_null(symbol_resolve(table, numbered(name, k), &size));
      assert_int_equal(size, k + 1);
    }
  }
  for (long i = 0; i < n; i += 2) assert_int_equal(symbol_unregister(table, numbered(name, i)), 0);
  for (long i = 0; i < n; i++) {
    uint32_t size = 0;
    assert_int_equal(symbol_resolve(table, numbered(name, i), &size) != NULL, i % 2);
    assert_int_equal(size, i % 2 ? i + 1 : 0);
  }
  for (long i = 0; i < n; i++)
    assert_int_equal(symbol_unregister(table, numbered(name, i)), i % 2 ? 0 : ERR_SYMBOL_NOT_FOUND);
  for (long i = 0; i < n; i++) assert_null(symbol_resolve(table, numbered(name, i), NULL));
}

/* Nothing is allocated: attempts are counted by the countdown to a failure that never comes. */
static void names_that_come_and_go_take_no_memory(void **state) {
  (void)state;
  const long never = 1L << 60;
  long n = test_size(50000, 1000000);
  char name[64];
  assert_int_equal(symbol_register(table, "a", memory, 1), 0); /* the first block */
  tp_fail_at(never);
  for (long i = 0; i < n; i++) {
    assert_int_equal(symbol_register(table, i % 2 ? "same" : numbered(name, i), memory, 1), 0);
    assert_int_equal(symbol_unregister(table, i % 2 ? "same" : name), 0);
  }
  assert_int_equal(tp_fail_left(), never);
  /* Up to 1000 at once, once; then never again. */
  for (long i = 0; i < 1000; i++)
    assert_int_equal(symbol_register(table, numbered(name, i), memory, 1), 0);
  assert_in_range(never - tp_fail_left(), 1, 30);
  tp_fail_at(never);
  for (long i = 1000; i < n; i++) {
    assert_int_equal(symbol_unregister(table, numbered(name, i - 1000)), 0);
    assert_int_equal(symbol_register(table, numbered(name, i), memory, 1), 0);
  }
  assert_int_equal(tp_fail_left(), never);
}

static void a_failure_is_survived_wherever_it_comes(void **state) {
  (void)state;
  enum { N = 300 };
  char name[64];
  for (long nth = 1;; nth++) {
    tp_fail_at(nth);
    symbol_table_t *t = tp_symbols_new();
    if (!t) {
      assert_said("out of memory for a table of symbols");
      continue;
    }
    int failed = 0;
    for (long i = 0; i < N; i++) {
      int code = symbol_register(t, numbered(name, i), memory + i, 1);
      if (code == 0) continue;
      assert_int_equal(code, ERR_MALLOC_FAILED);
      assert_memory_equal(tp_said(), "out of memory for the symbol \"symbol number ", 44);
      assert_null(symbol_resolve(t, name, NULL));
      assert_int_equal(symbol_register(t, name, memory + i, 1), 0); /* the second attempt */
      failed++;
    }
    assert_true(failed <= 1); /* without more buckets it goes on, so it may be none */
    for (long i = 0; i < N; i++)
      assert_ptr_equal(symbol_resolve(t, numbered(name, i), NULL), memory + i);
    long left = tp_fail_left();
    tp_symbols_free(t); /* a leak is seen by AddressSanitizer */
    if (left) {
      assert_in_range(nth, 9, 12); /* table, buckets twice more, five blocks */
      break;
    }
  }
}

/* --- threads: readers and pinners, while names come and go ---------------------------------------- */

enum { THREADS = 3, NAMES = 6, REGIONS = 3 };

static _Atomic bool stop;

/* A region's memory. While it is registered, and a moment longer, `alive` is true and `users` may use `value`. */
typedef struct region {
  TP_ALIGNED _Atomic bool alive;
  _Atomic uint32_t
      version; /* odd: unregistered; changes before it is registered and after it is unregistered */
  uint64_t
      value; /* plain: written while it is not registered, so a wrong use is a race that a sanitizer sees */
} region;

static region regions[NAMES][REGIONS];
static _Atomic uint64_t pinned_often, gone_often, was_busy;

static const char *const names[NAMES] = {"a", "b", "a name that takes more than one word",
                                         "c", "d", "e"};

enum { SHELF = 8 };
static _Atomic(tp_symbol_pin_t *)
    shelf[SHELF]; /* pins that wait for another thread to give them back */

static void fills_up(int from, int n) {
  char name[64];
  for (int i = from; i < from + n; i++)
    assert_int_equal(symbol_register(table, numbered(name, i), memory, (uint32_t)i + 1), 0);
}

static void uses_pin(tp_symbol_pin_t *p) {
  region *r = p->ptr;
  test_must(tp_load(&r->alive, relaxed)); /* poisoned: it was unregistered although it is held */
  test_must(r->value == p->size);
}

static void gives_back(tp_symbol_pin_t *p) {
  if (!p) return;
  uses_pin(p);
  tp_symbol_unpin(p);
  free(p);
}

static bool is_of(unsigned n, const region *r) {
  return r >= regions[n] && r < regions[n] + REGIONS;
}

static void *pinner(void *arg) {
  tp_rng r;
  tp_rng_seed(&r, (uintptr_t)arg);
  uint64_t pinned = 0, gone = 0;
  while (!tp_load(&stop, relaxed)) {
    unsigned n = tp_rng_below(&r, NAMES);
    tp_symbol_pin_t p;
    int code = pin(names[n], SYMBOL_READ, &p);
    if (code) {
      test_must(code == ERR_SYMBOL_NOT_FOUND);
      gone++;
      continue;
    }
    pinned++;
    test_must(is_of(n, p.ptr)); /* another's: the entry was used again before it was held */
    uses_pin(&p);
    if (tp_rng_below(&r, 64)) {
      uses_pin(&p);
      tp_symbol_unpin(&p);
    } else {
      tp_symbol_pin_t *later = malloc(sizeof *later);
      test_must(later);
      *later = p;
      gives_back(tp_swap(&shelf[tp_rng_below(&r, SHELF)], later, acq_rel));
    }
  }
  tp_add(&pinned_often, pinned, relaxed);
  tp_add(&gone_often, gone, relaxed);
  return NULL;
}

/* What does not change while it is looked up is what is seen. */
static void *resolver(void *arg) {
  tp_rng r;
  tp_rng_seed(&r, (uintptr_t)arg);
  while (!tp_load(&stop, relaxed)) {
    unsigned n = tp_rng_below(&r, NAMES);
    uint32_t version[REGIONS];
    for (int i = 0; i < REGIONS; i++) version[i] = tp_load(&regions[n][i].version, seq_cst);
    region *seen = symbol_resolve(table, names[n], NULL);
    test_must(!seen || is_of(n, seen));
    for (int i = 0; i < REGIONS; i++) {
      bool same = tp_load(&regions[n][i].version, seq_cst) == version[i];
      if (version[i] % 4 == 1 && same) test_must(seen != &regions[n][i]); /* handed out when gone */
      if (version[i] % 4 == 3 && same)
        test_must(seen == &regions[n][i]); /* not found though there */
    }
  }
  return NULL;
}

/* version, modulo 4: 1 not registered, 2 just being registered, 3 registered, 0 just being unregistered. */
static void steps(region *r) {
  tp_add(&r->version, 1, seq_cst);
}

static void churns(tp_rng *r, unsigned n, uint64_t turn) {
  region *g = &regions[n][turn % REGIONS];
  g->value = 1 + tp_rng_below(r, 1000);
  tp_store(&g->alive, true, relaxed);
  steps(g);
  test_must(symbol_register(table, names[n], g, (uint32_t)g->value) == 0);
  steps(g);
  for (unsigned i = tp_rng_below(r, 30); i > 0; i--) tp_pause();
  for (unsigned tries = 0;; tries++) {
    steps(g);
    int code = symbol_unregister(table, names[n]);
    if (code == 0) break;
    test_must(code == ERR_BUSY);
    tp_add(&g->version, UINT32_MAX, seq_cst); /* back: it is still there */
    tp_add(&was_busy, 1, relaxed);
    /* It may be one that lies on the shelf. */
    gives_back(tp_swap(&shelf[tp_rng_below(r, SHELF)], NULL, acq_rel));
    if (tries % 16 == 15) sched_yield();
  }
  tp_store(&g->alive, false, relaxed);
  g->value = 0;
  steps(g);
}

typedef struct churner_arg {
  unsigned first, names;
  long turns;
} churner_arg;

static void *churner(void *arg) {
  const churner_arg *a = arg;
  tp_rng r;
  tp_rng_seed(&r, 1000 + a->first);
  for (long i = 0; i < a->turns; i++)
    churns(&r, a->first + tp_rng_below(&r, a->names), (uint64_t)i);
  return NULL;
}

static void prepares_regions(void) {
  memset(regions, 0, sizeof regions);
  for (int n = 0; n < NAMES; n++) {
    for (int i = 0; i < REGIONS; i++) tp_store(&regions[n][i].version, 1, relaxed);
  }
  tp_store(&stop, false, relaxed);
}

/* Two threads register and unregister, three names each; others pin, hand their pins on, and resolve. If
 * unregistration and a pin both succeeded, the pin's user would find the region poisoned. A block has 64 entries:
 * those three that others leave free are used again at once, for another name. */
static void what_is_unregistered_is_used_by_nobody(void **state) {
  (void)state;
  fills_up(0, 61);
  prepares_regions();
  pthread_t readers[THREADS], lookers[1], writers[2];
  churner_arg args[2];
  for (uintptr_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&readers[i], NULL, pinner, (void *)(i + 1)), 0);
  assert_int_equal(pthread_create(&lookers[0], NULL, resolver, (void *)9), 0);
  for (unsigned i = 0; i < 2; i++) {
    args[i] = (churner_arg){i * NAMES / 2, NAMES / 2, test_size(3000, 200000)};
    assert_int_equal(pthread_create(&writers[i], NULL, churner, &args[i]), 0);
  }
  for (int i = 0; i < 2; i++) pthread_join(writers[i], NULL);
  tp_store(&stop, true, relaxed);
  for (int i = 0; i < THREADS; i++) pthread_join(readers[i], NULL);
  pthread_join(lookers[0], NULL);
  for (int i = 0; i < SHELF; i++) assert_null(tp_swap(&shelf[i], NULL, acq_rel)); /* all is over */
  print_message("pinned %llu, not there %llu, busy %llu\n", (unsigned long long)pinned_often,
                (unsigned long long)gone_often, (unsigned long long)was_busy);
  for (int n = 0; n < NAMES; n++) { /* each counter's sum is 0 */
    assert_int_equal(symbol_register(table, names[n], memory, 1), 0);
    assert_int_equal(symbol_unregister(table, names[n]), 0);
  }
}

/* One pin against one unregistration, begun at once, many times: the narrowest race. */
typedef struct duel {
  TP_ALIGNED _Atomic long round;
  _Atomic long decided; /* with round: by who unregisters */
  TP_ALIGNED _Atomic long done;
  TP_ALIGNED region region;
} duel;
static duel fight;

static void *duellist(void *arg) {
  long rounds = (long)(intptr_t)arg;
  for (long i = 1; i <= rounds; i++) {
    test_wait(tp_load(&fight.round, acquire) >= i);
    tp_symbol_pin_t p;
    if (pin("duel", SYMBOL_WRITE, &p) == 0) {
      test_wait(tp_load(&fight.decided, acquire) >= i);
      test_must(tp_load(&fight.region.alive, relaxed)); /* both have won */
      tp_symbol_unpin(&p);
    }
    tp_store(&fight.done, i, release);
  }
  return NULL;
}

static void one_pin_against_one_unregistration(void **state) {
  (void)state;
  long rounds = test_size(5000, 300000), won = 0;
  unsigned delay = 1; /* adjusts itself: each wins about as often as the other */
  tp_rng r;
  tp_rng_seed(&r, 3);
  pthread_t t;
  tp_store(&fight.round, 0, relaxed);
  tp_store(&fight.decided, 0, relaxed);
  tp_store(&fight.done, 0, relaxed);
  assert_int_equal(pthread_create(&t, NULL, duellist, (void *)(intptr_t)rounds), 0);
  for (long i = 1; i <= rounds; i++) {
    tp_store(&fight.region.alive, true, relaxed);
    assert_int_equal(symbol_register(table, "duel", &fight.region, 1), 0);
    tp_store(&fight.round, i, release);
    for (unsigned k = tp_rng_below(&r, 2 * delay); k > 0; k--) tp_pause();
    int code = symbol_unregister(table, "duel");
    if (code == 0) {
      tp_store(&fight.region.alive, false, relaxed);
      won++;
      if (delay < 1000) delay++;
    } else if (delay > 1) {
      delay--;
    }
    tp_store(&fight.decided, i, release);
    test_wait(tp_load(&fight.done, acquire) == i);
    if (code) assert_int_equal(symbol_unregister(table, "duel"), 0);
  }
  pthread_join(t, NULL);
  print_message("unregistered first in %ld of %ld\n", won, rounds);
}

/* --- threads: readers, while the table grows ------------------------------------------------------ */

enum { FIXED = 60 };
static _Atomic long registered; /* names number FIXED .. are there */
static _Atomic uint64_t looks;

/* Names that are there all the while are always found, and those that never were never. */
static void *looks_on(void *arg) {
  tp_rng r;
  tp_rng_seed(&r, (uintptr_t)arg);
  char name[64];
  uint64_t n = 0;
  for (; !tp_load(&stop, relaxed); n++) {
    uint32_t size;
    long i = tp_rng_below(&r, FIXED);
    test_must(symbol_resolve(table, numbered(name, i), &size) && size == i + 1);
    long there = tp_load(&registered, acquire);
    if (there) {
      i = FIXED + tp_rng_below(&r, (uint32_t)there);
      tp_symbol_pin_t p;
      test_must(pin(numbered(name, i), SYMBOL_READ, &p) == 0 && p.size == (size_t)i + 1);
      tp_symbol_unpin(&p);
    }
    if (n % 16 == 0) test_must(!symbol_resolve(table, "symbol number -1", NULL));
  }
  tp_add(&looks, n, relaxed);
  return NULL;
}

/* Keeps entries going from chain to chain, under the readers' feet. */
static void *stirs(void *arg) {
  tp_rng r;
  tp_rng_seed(&r, (uintptr_t)arg);
  char name[64];
  while (!tp_load(&stop, relaxed)) {
    sprintf(name, "%lx", (unsigned long)tp_rng_below(&r, 1000));
    test_must(symbol_register(table, name, memory, 1) == 0);
    test_must(symbol_unregister(table, name) == 0);
  }
  return NULL;
}

static void what_is_there_is_found_while_it_grows(void **state) {
  (void)state;
  long n = test_size(2000, 50000), rounds = test_size(2, 10);
  char name[64];
  for (long round = 0; round < rounds; round++) {
    symbol_table_t *before = table;
    table = tp_symbols_new();
    assert_non_null(table);
    tp_symbols_free(before);
    fills_up(0, FIXED);
    tp_store(&stop, false, relaxed);
    tp_store(&registered, 0, relaxed);
    pthread_t t[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
      assert_int_equal(pthread_create(&t[i], NULL, i ? looks_on : stirs, (void *)(i + 1)), 0);
    for (long i = 0; i < n; i++) {
      assert_int_equal(
          symbol_register(table, numbered(name, FIXED + i), memory, (uint32_t)(FIXED + i) + 1), 0);
      tp_store(&registered, i + 1, release);
    }
    tp_store(&stop, true, relaxed);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
  }
  print_message("looked up %llu times\n", (unsigned long long)looks);
}

/* Few entries: what a reader steps on is used again soon, in another chain. Of the 64 of a block, four are left beside
 * those of fixed names. */
static void what_is_there_is_found_while_others_come_and_go(void **state) {
  (void)state;
  fills_up(0, FIXED);
  tp_store(&stop, false, relaxed);
  tp_store(&registered, 0, relaxed);
  pthread_t t[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&t[i], NULL, i ? looks_on : stirs, (void *)(i + 1)), 0);
  const struct timespec while_ = {test_size(0, 1), 200000000};
  nanosleep(&while_, NULL);
  tp_store(&stop, true, relaxed);
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
}

#define symbols_test(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
  const struct CMUnitTest tests[] = {
      symbols_test(a_region_is_found_by_its_name),
      symbols_test(a_name_is_taken_once),
      symbols_test(a_name_has_1_to_63_bytes),
      symbols_test(a_name_has_any_bytes_but_control_characters),
      symbols_test(misuse_is_an_error),
      symbols_test(flags_say_what_a_pin_may_do),
      symbols_test(what_is_pinned_stays),
      symbols_test(a_pin_may_be_given_back_by_another_thread),
      symbols_test(it_grows),
      symbols_test(names_that_come_and_go_take_no_memory),
      symbols_test(a_failure_is_survived_wherever_it_comes),
      symbols_test(what_is_unregistered_is_used_by_nobody),
      symbols_test(one_pin_against_one_unregistration),
      symbols_test(what_is_there_is_found_while_it_grows),
      symbols_test(what_is_there_is_found_while_others_come_and_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
