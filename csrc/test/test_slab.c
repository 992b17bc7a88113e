/* test_slab.c - records by number: ids, stale ids, the last generation, no memory, many threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "task/slab.h"

static int scale(int normal) {
  if (getenv("TP_QUICK")) return normal / 10 ? normal / 10 : 1;
  return getenv("TP_STRESS") ? normal * 20 : normal;
}

typedef struct {
  tp_record record; /* first: a tp_record * is a rec * */
  uint64_t user;    /* plain: two users are a race that a sanitizer sees */
  long kept;
} rec;

static tp_slab slab;
static tp_slab_cache cache;

static void begin(void) {
  memset(&slab, 0, sizeof slab);
  memset(&cache, 0, sizeof cache);
  tp_slab_init(&slab, sizeof(rec), sizeof(uint64_t));
}
static void end(void) {
  tp_slab_cache_free(&cache);
  tp_slab_free(&slab);
}
static rec *take(void) {
  return (rec *)tp_slab_take(&slab, &cache);
}
static void give(rec *r) {
  tp_slab_give(&slab, &cache, &r->record);
}
static uint64_t id_of(rec *r) {
  return tp_load(&r->record.id, relaxed);
}
static uint64_t index_of(uint64_t id) {
  return id & (TP_SLAB_MAX_RECORDS - 1);
}
static bool valid(uint64_t id) {
  return id >= TP_SLAB_GENERATION && id < TP_SLAB_MAX_ID && (uint64_t)(double)id == id;
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}
static void all_differ(uint64_t *id, size_t n) {
  qsort(id, n, sizeof *id, by_value);
  for (size_t i = 0; i < n; i++) {
    assert_true(valid(id[i]));
    assert_true(i == 0 || id[i] != id[i - 1]);
  }
}

static void an_empty_one_knows_no_number(void **state) {
  (void)state;
  begin();
  assert_int_equal(tp_slab_used(&slab), 0);
  for (uint64_t id = 0; id < TP_SLAB_MAX_ID; id = id * 3 + 1) assert_null(tp_slab_at(&slab, id));
  assert_null(tp_slab_at(&slab, TP_SLAB_MAX_ID - 1));
  assert_null(tp_slab_at(&slab, UINT64_MAX));
  end();
}

/* Into the fifth segment: 1024 * (1 + 2 + 4 + 8) = 15360. */
static void an_id_leads_to_its_record(void **state) {
  (void)state;
  enum { N = 20000 };
  static rec *r[N];
  static uint64_t id[N];
  begin();
  for (int i = 0; i < N; i++) {
    r[i] = take();
    assert_non_null(r[i]);
    assert_int_equal(r[i]->kept, 0); /* new records are zero */
    r[i]->kept = i + 1;
    id[i] = id_of(r[i]);
    assert_true(index_of(id[i]) < tp_slab_used(&slab));
  }
  assert_in_range(tp_slab_used(&slab), N, N + TP_MAGAZINE);
  for (int i = 0; i < N; i++) {
    assert_ptr_equal(tp_slab_at(&slab, id[i]), r[i]);
    assert_ptr_equal(tp_slab_at(&slab, index_of(id[i])), r[i]);
    assert_int_equal(id_of(r[i]), id[i]);
    assert_int_equal(r[i]->kept, i + 1); /* no two overlap */
  }
  /* The borders between segments, and what is behind the last. */
  for (uint32_t border = 1024; border < N; border = 2 * border + 1024) {
    rec *a = (rec *)tp_slab_at(&slab, border - 1), *b = (rec *)tp_slab_at(&slab, border);
    assert_int_equal(index_of(id_of(a)), border - 1);
    assert_int_equal(index_of(id_of(b)), border);
  }
  assert_null(tp_slab_at(&slab, 31 * 1024));
  assert_null(tp_slab_at(&slab, TP_SLAB_MAX_RECORDS - 1));
  all_differ(id, N);
  for (int i = 0; i < N; i++) give(r[i]);
  uint32_t used = tp_slab_used(&slab);
  for (int i = 0; i < N; i++) {
    rec *again = take();
    assert_non_null(again);
    assert_in_range(again->kept, 1, N); /* as its last user left it */
    again->kept = 0;                    /* and given out once */
  }
  assert_int_equal(tp_slab_used(&slab), used);
  end();
}

static void a_stale_id_is_recognised(void **state) {
  (void)state;
  begin();
  rec *r = take();
  uint64_t stale[100];
  for (int i = 0; i < 100; i++) {
    stale[i] = id_of(r);
    give(r);
    assert_ptr_equal(take(), r); /* the newest first */
    for (int k = 0; k <= i; k++) {
      assert_ptr_equal(tp_slab_at(&slab, stale[k]), r);
      assert_int_not_equal(id_of(r), stale[k]);
    }
  }
  all_differ(stale, 100);
  end();
}

static void no_id_comes_twice(void **state) {
  (void)state;
  size_t n = (size_t)scale(200000), count = 0;
  uint64_t *id = malloc(n * sizeof *id);
  static rec *held[500];
  int holding = 0;
  tp_rng r;
  tp_rng_seed(&r, 1);
  begin();
  while (count < n) {
    if (holding == 0 || (holding < 500 && tp_rng_below(&r, 2))) {
      rec *taken = take();
      assert_non_null(taken);
      held[holding++] = taken;
      id[count++] = id_of(taken);
    } else {
      int i = (int)tp_rng_below(&r, (uint32_t)holding);
      give(held[i]);
      held[i] = held[--holding];
    }
  }
  assert_true(tp_slab_used(&slab) <= 500 + 3 * TP_MAGAZINE);
  all_differ(id, n);
  free(id);
  end();
}

static void after_the_last_generation_a_record_retires(void **state) {
  (void)state;
  begin();
  rec *r = take();
  uint64_t index = index_of(id_of(r)), last = TP_SLAB_MAX_ID - TP_SLAB_GENERATION + index;
  tp_store(&r->record.id, last - 2 * TP_SLAB_GENERATION, relaxed);
  for (int i = 1; i >= 0; i--) {
    give(r);
    assert_ptr_equal(take(), r);
    assert_int_equal(id_of(r), last - (uint64_t)i * TP_SLAB_GENERATION);
    assert_true(valid(id_of(r)));
  }
  give(r); /* for the last time */
  for (int i = 0; i < 5000; i++) {
    rec *other = take();
    assert_non_null(other);
    assert_ptr_not_equal(other, r);
    assert_true(valid(id_of(other)));
    if (i % 2) give(other);
  }
  assert_int_equal(id_of(r), last);
  assert_ptr_equal(tp_slab_at(&slab, last), r); /* may be looked at as before */
  end();
}

static void there_are_no_more_than_2_26(void **state) {
  (void)state;
  begin();
  rec *r = take();
  uint32_t used = slab.used;
  for (uint32_t i = 1; i < used; i++) assert_non_null(take());
  slab.used = TP_SLAB_MAX_RECORDS;
  for (int i = 0; i < 3; i++) assert_null(take());
  give(r);
  assert_ptr_equal(take(), r);
  assert_null(take());
  slab.used = used;
  assert_non_null(take());
  end();
}

/* --- no memory */

/* Whatever fails: what is given out is right, the rest goes on, nothing leaks. */
static void a_failure_is_survived_wherever_it_comes(void **state) {
  (void)state;
  enum { N = 4000 };
  static rec *r[N];
  static uint64_t id[2 * N];
  bool fired = true;
  for (long nth = 1; fired; nth++) {
    begin();
    int refused = 0;
    size_t count = 0;
    tp_fail_at(nth);
    for (int i = 0; i < N;) {
      r[i] = take();
      if (r[i])
        id[count++] = id_of(r[i++]);
      else
        refused++;
    }
    assert_true(refused <= 1); /* it failed once */
    for (int i = 0; i < N; i++) give(r[i]);
    fired = tp_fail_left() == 0;
    tp_fail_at(0);
    uint32_t used = tp_slab_used(&slab);
    for (int i = 0; i < N; i++) {
      r[i] = take();
      assert_non_null(r[i]);
      id[count++] = id_of(r[i]);
      for (int k = 0; k < i; k += 97) assert_ptr_not_equal(r[i], r[k]);
    }
    /* A record that found no place is not used again, and only that one. */
    assert_true(tp_slab_used(&slab) <= used + TP_MAGAZINE);
    all_differ(id, count);
    end();
  }
}

static void without_memory_nothing_is_given_out(void **state) {
  (void)state;
  begin();
  for (int i = 0; i < 5; i++) { /* no magazine */
    tp_fail_at(1);
    assert_null(take());
    assert_int_equal(tp_slab_used(&slab), 0);
  }
  for (int i = 0; i < 5; i++) { /* no segment */
    tp_fail_at(i == 0 ? 2 : 1);
    assert_null(take());
    assert_int_equal(tp_slab_used(&slab), 0);
    assert_null(tp_slab_at(&slab, 0));
  }
  tp_fail_at(0);
  /* Then the second segment fails: the first is used up before that is noticed. */
  for (int i = 0; i < 1024 - 1024 % TP_MAGAZINE; i++) assert_non_null(take());
  tp_fail_at(1);
  for (int i = 0; i < 1024 % TP_MAGAZINE; i++) assert_non_null(take());
  assert_int_equal(tp_fail_left(), 0);
  tp_fail_at(1);
  assert_null(take());
  tp_fail_at(0);
  rec *r = take();
  assert_non_null(r);
  assert_true(index_of(id_of(r)) >= 1024);
  end();
}

static void a_record_that_finds_no_place_is_lost(void **state) {
  (void)state;
  begin();
  rec *r = take();
  tp_slab_cache fresh = {0};
  tp_fail_at(1);
  tp_slab_give(&slab, &fresh, &r->record);
  assert_int_equal(tp_fail_left(), 0);
  assert_null(fresh.loaded);
  for (int i = 0; i < 2000; i++) {
    rec *other = (rec *)tp_slab_take(&slab, &fresh);
    assert_non_null(other);
    assert_ptr_not_equal(other, r);
  }
  tp_slab_cache_free(&fresh);
  end();
}

/* --- threads with caches of their own, which hand records to each other */

enum { THREADS = 4, SHELF = 64 };

static _Atomic(rec *) shelf[SHELF];
static uint64_t *ids[THREADS];
static size_t ids_each;
static _Atomic unsigned wrong;

static void *user(void *arg) {
  unsigned me = (unsigned)(uintptr_t)arg;
  tp_slab_cache mine = {0};
  tp_rng r;
  tp_rng_seed(&r, me);
  for (size_t i = 0; i < ids_each; i++) {
    rec *taken = (rec *)tp_slab_take(&slab, &mine);
    if (!taken || taken->user != 0) {
      tp_add(&wrong, 1, relaxed);
      break;
    }
    uint64_t id = ids[me][i] = id_of(taken);
    taken->user = id;
    if (tp_slab_at(&slab, id) != &taken->record) tp_add(&wrong, 1, relaxed);
    /* Each record comes off the shelf once: swap hands it over. */
    rec *old = tp_swap(&shelf[tp_rng_below(&r, SHELF)], taken, acq_rel);
    if (!old) continue;
    if (old->user != id_of(old)) tp_add(&wrong, 1, relaxed);
    old->user = 0;
    tp_slab_give(&slab, &mine, &old->record);
    /* A stale or random number may be looked at by anybody. */
    tp_record *any = tp_slab_at(&slab, tp_rng_next(&r) % TP_SLAB_MAX_ID % 4096);
    if (any && tp_load(&any->id, relaxed) >= TP_SLAB_MAX_ID) tp_add(&wrong, 1, relaxed);
  }
  tp_slab_cache_free(&mine);
  return NULL;
}

static void many_threads(void **state) {
  (void)state;
  begin();
  ids_each = (size_t)scale(200000);
  uint64_t *id = calloc(THREADS * ids_each, sizeof *id);
  assert_non_null(id);
  memset(shelf, 0, sizeof shelf);
  pthread_t t[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++) {
    ids[i] = id + i * ids_each;
    assert_int_equal(pthread_create(&t[i], NULL, user, (void *)i), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
  assert_int_equal(tp_load(&wrong, relaxed), 0);
  all_differ(id, THREADS * ids_each);
  /* Nothing was lost on the way: on the shelf, in a cache, or in a magazine of the depot. */
  assert_true(tp_slab_used(&slab) <= SHELF + THREADS * 6 * TP_MAGAZINE);
  free(id);
  end();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_empty_one_knows_no_number),
      cmocka_unit_test(an_id_leads_to_its_record),
      cmocka_unit_test(a_stale_id_is_recognised),
      cmocka_unit_test(no_id_comes_twice),
      cmocka_unit_test(after_the_last_generation_a_record_retires),
      cmocka_unit_test(there_are_no_more_than_2_26),
      cmocka_unit_test(a_failure_is_survived_wherever_it_comes),
      cmocka_unit_test(without_memory_nothing_is_given_out),
      cmocka_unit_test(a_record_that_finds_no_place_is_lost),
      cmocka_unit_test(many_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
