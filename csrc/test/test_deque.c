/* test_deque.c - a worker's forks: the private and the public end, growth, exactly once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/rng.h"
#include "sched/deque.h"

static int scale(int normal) {
  if (getenv("TP_QUICK")) return normal / 10 ? normal / 10 : 1;
  return getenv("TP_STRESS") ? normal * 20 : normal;
}

static threadpool_worker deque;
static threadpool_job jobs[1000];

static void begin(void) {
  memset(&deque, 0, sizeof deque);
  assert_int_equal(tp_deque_init(&deque, 2), 0);
}
static void push(int from, int n) {
  for (int i = from; i < from + n; i++) {
    assert_true(tp_deque_make_room(&deque));
    tp_deque_push(&deque, &jobs[i]);
  }
}
static threadpool_job *steal(void) {
  return tp_deque_steal(&deque);
}

static void an_empty_one_gives_nothing(void **state) {
  (void)state;
  begin();
  for (int i = 0; i < 3; i++) {
    assert_null(tp_deque_pop(&deque));
    assert_null(steal());
    assert_false(tp_deque_any(&deque));
    assert_int_equal(tp_deque_expose(&deque, 5), 0);
    push(i, 1); /* and is empty again */
    assert_ptr_equal(tp_deque_pop(&deque), &jobs[i]);
    push(i, 1);
    assert_int_equal(tp_deque_expose(&deque, 1), 1);
    assert_ptr_equal(i % 2 ? steal() : tp_deque_pop(&deque), &jobs[i]);
  }
  tp_deque_free(&deque);
}

static void private_jobs_are_the_owners(void **state) {
  (void)state;
  begin();
  push(0, 10);
  assert_false(tp_deque_any(&deque));
  assert_null(steal());
  for (int i = 9; i >= 0; i--) assert_ptr_equal(tp_deque_pop(&deque), &jobs[i]);
  assert_null(tp_deque_pop(&deque));
  tp_deque_free(&deque);
}

static void the_oldest_are_exposed(void **state) {
  (void)state;
  begin();
  push(0, 10);
  assert_int_equal(tp_deque_expose(&deque, 0), 0);
  assert_false(tp_deque_any(&deque));
  assert_int_equal(tp_deque_expose(&deque, 2), 2);
  assert_int_equal(tp_deque_expose(&deque, 2), 0);
  assert_int_equal(tp_deque_expose(&deque, 1), 0); /* what is public stays so */
  assert_true(tp_deque_any(&deque));
  assert_ptr_equal(steal(), &jobs[0]);
  assert_int_equal(tp_deque_expose(&deque, 2), 1);
  assert_ptr_equal(steal(), &jobs[1]);
  assert_ptr_equal(steal(), &jobs[2]);
  assert_null(steal()); /* 3..9 are private */
  assert_int_equal(tp_deque_expose(&deque, 100), 7);
  assert_ptr_equal(steal(), &jobs[3]);
  assert_ptr_equal(tp_deque_pop(&deque), &jobs[9]);
  push(10, 1); /* private above public */
  assert_ptr_equal(tp_deque_pop(&deque), &jobs[10]);
  for (int i = 8; i >= 4; i--) assert_ptr_equal(tp_deque_pop(&deque), &jobs[i]);
  assert_null(tp_deque_pop(&deque));
  assert_null(steal());
  assert_int_equal(tp_deque_expose(&deque, 100), 0);
  tp_deque_free(&deque);
}

static void all_can_be_exposed(void **state) {
  (void)state;
  begin();
  for (int round = 0; round < 3; round++) { /* from the second on, top is not 0 */
    push(0, 5);
    assert_int_equal(tp_deque_expose(&deque, INT64_MAX), 5);
    for (int i = 0; i < 5; i++) assert_ptr_equal(steal(), &jobs[i]);
    assert_null(tp_deque_pop(&deque));
  }
  tp_deque_free(&deque);
}

/* Against a plain list, with every operation that there is. */
static void it_agrees_with_a_list(void **state) {
  (void)state;
  tp_rng r;
  tp_rng_seed(&r, 1);
  for (int round = 0; round < scale(100); round++) {
    begin();
    threadpool_job *list[4000];
    int top = 0, split = 0, bottom = 0;
    for (int i = 0; i < 2000; i++) {
      switch (tp_rng_below(&r, 6)) {
      case 0:
      case 1:
      case 2: {
        int j = (int)tp_rng_below(&r, 1000);
        push(j, 1);
        list[bottom++] = &jobs[j];
        break;
      }
      case 3: {
        threadpool_job *job = tp_deque_pop(&deque);
        assert_ptr_equal(job, bottom > top ? list[bottom - 1] : NULL);
        if (job) bottom--;
        if (split > bottom) split = bottom;
        break;
      }
      case 4: {
        threadpool_job *job = steal();
        assert_ptr_equal(job, split > top ? list[top] : NULL);
        if (job) top++;
        break;
      }
      default: {
        int count = (int)tp_rng_below(&r, 20), to = top + count < bottom ? top + count : bottom;
        assert_int_equal(tp_deque_expose(&deque, count), to > split ? to - split : 0);
        if (to > split) split = to;
      }
      }
      /* A pop of the last public job leaves the numbers one higher, which nobody can tell. */
      if (top == bottom) top = split = bottom = 0;
      assert_int_equal(tp_deque_any(&deque), split > top);
    }
    tp_deque_free(&deque);
  }
}

static void it_grows(void **state) {
  (void)state;
  begin();
  int64_t size = deque.own->mask + 1;
  push(0, 1000);
  assert_true(deque.own->mask + 1 >= 1000);
  assert_non_null(deque.own->older); /* a thief may hold it */
  tp_deque_expose(&deque, 500);
  for (int i = 0; i < 500; i++) assert_ptr_equal(steal(), &jobs[i]);
  for (int i = 999; i >= 500; i--) assert_ptr_equal(tp_deque_pop(&deque), &jobs[i]);
  tp_deque_free(&deque);

  /* It does not while jobs only pass through it. */
  begin();
  for (int i = 0; i < 10000; i++) {
    push(i % 900, 50);
    tp_deque_expose(&deque, 50);
    for (int k = 0; k < 50; k++) assert_ptr_equal(steal(), &jobs[i % 900 + k]);
  }
  assert_int_equal(deque.own->mask + 1, size);
  assert_null(deque.own->older);
  tp_deque_free(&deque);
}

static void out_of_memory_it_stays_as_it_is(void **state) {
  (void)state;
  memset(&deque, 0, sizeof deque);
  tp_fail_at(1);
  assert_int_equal(tp_deque_init(&deque, 2), ERR_MALLOC_FAILED);
  begin();
  int n = (int)deque.own->mask + 1;
  push(0, n);
  for (int i = 0; i < 3; i++) {
    tp_fail_at(1);
    assert_false(tp_deque_make_room(&deque));
    assert_int_equal(tp_fail_left(), 0);
  }
  tp_fail_at(0);
  tp_deque_expose(&deque, 1);
  assert_ptr_equal(steal(), &jobs[0]);
  tp_fail_at(1); /* a place is free now */
  assert_true(tp_deque_make_room(&deque));
  assert_int_equal(tp_fail_left(), 1);
  tp_fail_at(0);
  tp_deque_push(&deque, &jobs[n]);
  push(n + 1, 1); /* and memory again */
  for (int i = n + 1; i >= 1; i--) assert_ptr_equal(tp_deque_pop(&deque), &jobs[i]);
  assert_null(tp_deque_pop(&deque));
  tp_deque_free(&deque);
}

/* --- an owner and three thieves */

enum { THIEVES = 3 };

typedef struct {
  threadpool_job job; /* first: a threadpool_job * is an item * */
  unsigned number, taken;
} item;

static item *items;
static _Atomic unsigned items_left;

/* `taken` is plain: two takers are a race that a sanitizer sees, and a count that is not 1. */
static void take(threadpool_job *job) {
  ((item *)job)->taken++;
  tp_sub(&items_left, 1, relaxed);
}

static void *thief(void *arg) {
  while (tp_load(&items_left, relaxed)) {
    threadpool_job *job = tp_deque_steal(&deque);
    if (job)
      take(job);
    else
      sched_yield();
  }
  return arg;
}

static pthread_t threads[THIEVES];

static void race_begins(unsigned n) {
  begin();
  items = calloc(n, sizeof *items);
  assert_non_null(items);
  for (unsigned i = 0; i < n; i++) items[i].number = i;
  tp_store(&items_left, n, relaxed);
  for (int i = 0; i < THIEVES; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, thief, NULL), 0);
}
static void race_ends(unsigned n) {
  while (tp_load(&items_left, relaxed)) {
    tp_deque_expose(&deque, 2);
    threadpool_job *job = tp_deque_pop(&deque);
    if (job)
      take(job);
    else
      sched_yield(); /* thieves have the rest */
  }
  for (int i = 0; i < THIEVES; i++) pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < n; i++) {
    if (items[i].number != i || items[i].taken != 1)
      fail_msg("job %u (%u): taken %u times", i, items[i].number, items[i].taken);
  }
  assert_null(tp_deque_pop(&deque));
  assert_null(steal());
  tp_deque_free(&deque);
  free(items);
}
static void push_item(unsigned i) {
  while (!tp_deque_make_room(&deque)) sched_yield();
  tp_deque_push(&deque, &items[i].job);
}

/* Up and down by thousands, with some or all of it public. */
static void a_deep_deque_gives_each_once(void **state) {
  (void)state;
  unsigned n = (unsigned)scale(1000000);
  race_begins(n);
  tp_rng r;
  tp_rng_seed(&r, 1);
  for (unsigned i = 0; i < n;) {
    for (unsigned k = tp_rng_below(&r, 3000); k > 0 && i < n; k--) {
      push_item(i++);
      if (k % 8 == 0) tp_deque_expose(&deque, 1 + tp_rng_below(&r, 4000));
    }
    for (unsigned k = tp_rng_below(&r, 3000); k > 0; k--) {
      threadpool_job *job = tp_deque_pop(&deque);
      if (!job) break;
      take(job);
    }
  }
  race_ends(n);
}

/* From 64 to thousands, again and again, while thieves read what is being replaced. */
static void growth_under_thieves(void **state) {
  (void)state;
  for (int round = 0; round < scale(100); round++) {
    unsigned n = 5000;
    race_begins(n);
    for (unsigned i = 0; i < n; i++) {
      push_item(i);
      tp_deque_expose(&deque, 100000);
    }
    race_ends(n);
  }
}

/* Owner and thieves want the same, only job. */
static void a_single_job_is_taken_once(void **state) {
  (void)state;
  unsigned n = (unsigned)scale(400000);
  race_begins(n);
  for (unsigned i = 0; i < n; i++) {
    push_item(i);
    tp_deque_expose(&deque, 1);
    if (i % 16 == 0) sched_yield();
    threadpool_job *job = tp_deque_pop(&deque);
    if (job) take(job);
  }
  race_ends(n);
}

/* Two public jobs: the owner takes the newer without a CAS while thieves take the older. */
static void two_jobs_are_taken_once(void **state) {
  (void)state;
  unsigned n = (unsigned)scale(400000);
  race_begins(n);
  for (unsigned i = 0; i + 1 < n; i += 2) {
    push_item(i);
    push_item(i + 1);
    tp_deque_expose(&deque, 2);
    threadpool_job *job;
    while ((job = tp_deque_pop(&deque))) take(job);
  }
  race_ends(n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_empty_one_gives_nothing),
      cmocka_unit_test(private_jobs_are_the_owners),
      cmocka_unit_test(the_oldest_are_exposed),
      cmocka_unit_test(all_can_be_exposed),
      cmocka_unit_test(it_agrees_with_a_list),
      cmocka_unit_test(it_grows),
      cmocka_unit_test(out_of_memory_it_stays_as_it_is),
      cmocka_unit_test(a_deep_deque_gives_each_once),
      cmocka_unit_test(growth_under_thieves),
      cmocka_unit_test(a_single_job_is_taken_once),
      cmocka_unit_test(two_jobs_are_taken_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
