/* test_base.c - allocation, errors, processors, random numbers, threads (base/).
 *
 * cmocka's assertions leave by longjmp, so only the main thread makes them.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/cpus.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/thread.h"

/* --- alloc ------------------------------------------------------------------------------------ */

static void memory_is_zeroed_and_begins_a_cache_line(void **state) {
  (void)state;
  size_t sizes[] = {1, 2, 63, 64, 65, 127, 128, 1000, 4096, 100001, 3 << 20};
  for (int round = 0; round < 3; round++) { /* the second time it is likely to be used memory */
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      unsigned char *p = tp_alloc(sizes[i]);
      assert_non_null(p);
      assert_int_equal((uintptr_t)p % TP_CACHE_LINE, 0);
      for (size_t k = 0; k < sizes[i]; k++) {
        if (p[k]) fail_msg("byte %zu of %zu is not 0", k, sizes[i]);
      }
      memset(p, 0xa5, sizes[i]);
      tp_free(p);
    }
  }
  tp_free(NULL);
}

static void sizes_that_cannot_be_are_refused(void **state) {
  (void)state;
  assert_null(tp_alloc(0));
  assert_null(tp_alloc(SIZE_MAX)); /* would be 0 when rounded up */
  assert_null(tp_alloc(SIZE_MAX - TP_CACHE_LINE + 1));
}

static void the_nth_attempt_fails_and_no_other(void **state) {
  (void)state;
  for (long nth = 1; nth <= 10; nth++) {
    tp_fail_at(nth);
    for (long i = 1; i <= 12; i++) {
      assert_int_equal(tp_fail_left(), i <= nth ? nth - i + 1 : 0);
      void *p = tp_alloc(8);
      assert_int_equal(p == NULL, i == nth);
      tp_free(p);
    }
  }
  tp_fail_at(1);
  tp_fail_at(0); /* off again */
  assert_false(tp_fail_now());
}

enum { ASKERS = 4, QUESTIONS = 5000 };

static void *ask(void *failures) {
  for (int i = 0; i < QUESTIONS; i++) {
    if (tp_fail_now()) tp_add((_Atomic int *)failures, 1, relaxed);
  }
  return NULL;
}

/* Wrong: it fails in several threads, or in none. */
static void one_attempt_fails_though_many_threads_make_them(void **state) {
  (void)state;
  for (int round = 0; round < 20; round++) {
    _Atomic int failures = 0;
    pthread_t thread[ASKERS];
    tp_fail_at(ASKERS * QUESTIONS - round * 500);
    for (int i = 0; i < ASKERS; i++)
      assert_int_equal(pthread_create(&thread[i], NULL, ask, &failures), 0);
    for (int i = 0; i < ASKERS; i++) pthread_join(thread[i], NULL);
    assert_int_equal(failures, 1);
    assert_int_equal(tp_fail_left(), 0);
  }
}

/* --- errors ----------------------------------------------------------------------------------- */

static void every_error_has_a_name_and_a_text_of_its_own(void **state) {
  (void)state;
  static const struct {
    int code;
    const char *name;
  } list[] = {
#define ITEM(name, code, text) {code, #name},
      THREADPOOL_ERRORS(ITEM)
#undef ITEM
  };
  int count = (int)(sizeof list / sizeof *list);
  assert_int_equal(ERR_SUCCESS, 0);
  for (int i = 0; i < count; i++) {
    assert_int_equal(list[i].code, -i); /* without a gap: new ones are added at the end */
    assert_string_equal(tp_error_name(list[i].code), list[i].name);
    assert_int_equal(strncmp(list[i].name, "ERR_", 4), 0);
    assert_true(strlen(tp_error_text(list[i].code)) > 0);
    assert_string_not_equal(tp_error_text(list[i].code), "unknown error");
    for (int k = 0; k < i; k++) {
      assert_string_not_equal(tp_error_name(-i), tp_error_name(-k));
      assert_string_not_equal(tp_error_text(-i), tp_error_text(-k));
    }
  }
  int unknown[] = {1, -count, -1000, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    assert_string_equal(tp_error_name(unknown[i]), "ERR_UNKNOWN");
    assert_string_equal(tp_error_text(unknown[i]), "unknown error");
  }
}

/* --- processors ------------------------------------------------------------------------------- */

static void a_quota_is_rounded_up_to_whole_processors(void **state) {
  (void)state;
  static const struct {
    const char *text;
    unsigned cpus;
  } quota[] = {
      {"100000 100000\n", 1},
      {"200000 100000\n", 2},
      {"150000 100000\n", 2},
      {"100001 100000\n", 2},
      {"1000 100000", 1},
      {"1 1", 1},
      {"6400000 100000", 64},
      {"50000\n 20000\n", 3}, /* as put together from the two files of v1 */
      /* no limit */
      {"max 100000\n", 0},
      {"max", 0},
      {"-1\n 100000\n", 0},
      /* not readable */
      {"", 0},
      {"\n", 0},
      {"100000", 0},
      {"100000 0", 0},
      {"0 100000", 0},
      {"100000 -100000", 0},
      {"x 100000", 0},
      {"100000 x", 0},
  };
  for (size_t i = 0; i < sizeof quota / sizeof *quota; i++) {
    if (tp_cpus_of_quota(quota[i].text) != quota[i].cpus)
      fail_msg("\"%s\": %u", quota[i].text, tp_cpus_of_quota(quota[i].text));
  }
}

static void counts_and_lists_the_processors_of_the_mask(void **state) {
  (void)state;
  cpu_set_t all;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  int total = CPU_COUNT(&all);
  unsigned available = tp_cpus_available();
  assert_in_range(available, 1, total);

  cpu_set_t some; /* grows by one processor a round */
  CPU_ZERO(&some);
  unsigned count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &some);
    assert_int_equal(sched_setaffinity(0, sizeof some, &some), 0);
    count++;
    unsigned seen = tp_cpus_available();
    bool wraps = true, listed = true;
    for (unsigned n = 0; n < count; n++) {
      int nth = tp_cpus_nth(&some, n);
      listed = listed && nth >= 0 && CPU_ISSET(nth, &some) &&
               (n == 0 || tp_cpus_nth(&some, n - 1) < nth);
      wraps =
          wraps && tp_cpus_nth(&some, n + count) == nth && tp_cpus_nth(&some, n + 7 * count) == nth;
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(seen, count < available ? count : available); /* a quota may be less */
    assert_true(listed);
    assert_true(wraps);
  }
  assert_int_equal(count, total);
}

/* --- random numbers --------------------------------------------------------------------------- */

static void numbers_stay_below_their_bound_and_reach_all_of_it(void **state) {
  (void)state;
  tp_rng r;
  tp_rng_seed(&r, 42);
  for (uint32_t bound = 1; bound <= 100; bound++) {
    unsigned hits[100] = {0};
    for (int i = 0; i < 5000; i++) {
      uint32_t n = tp_rng_below(&r, bound);
      assert_true(n < bound);
      hits[n]++;
    }
    for (uint32_t n = 0; n < bound; n++) assert_in_range(hits[n], 1, 5000 * 4 / bound);
  }
  uint32_t large[] = {1u << 31, UINT32_MAX};
  for (int i = 0; i < 10000; i++) {
    assert_true(tp_rng_below(&r, large[0]) < large[0]);
    assert_true(tp_rng_below(&r, large[1]) < large[1]);
  }
}

static void unlike_seeds_give_unlike_sequences(void **state) {
  (void)state;
  enum { SEEDS = 200 };
  uint64_t first[SEEDS], second[SEEDS];
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    tp_rng r, same;
    tp_rng_seed(&r, seed);
    tp_rng_seed(&same, seed);
    assert_true(r.state != 0);
    first[seed] = tp_rng_next(&r);
    second[seed] = tp_rng_next(&r);
    assert_true(first[seed] == tp_rng_next(&same));
    assert_true(second[seed] == tp_rng_next(&same));
    assert_true(first[seed] != second[seed]);
    for (uint64_t other = 0; other < seed; other++) {
      assert_true(first[seed] != first[other]);
      assert_true(first[seed] >> 32 != first[other] >> 32); /* the half that picks victims */
      assert_true(second[seed] != second[other]);
    }
  }
  tp_rng r;
  tp_rng_seed(&r, -0x9e3779b97f4a7c15ull); /* the one that splitmix64 makes 0 of */
  assert_true(r.state != 0);
  assert_true(tp_rng_next(&r) != tp_rng_next(&r));
}

/* --- threads ---------------------------------------------------------------------------------- */

typedef struct report {
  pthread_t self;
  sigset_t blocked;
  cpu_set_t cpus;
} report;

static void *report_main(void *arg) {
  report *r = arg;
  pthread_sigmask(SIG_BLOCK, NULL, &r->blocked);
  r->self = pthread_self();
  sched_getaffinity(0, sizeof r->cpus, &r->cpus);
  return r;
}

static report run_thread(void) {
  report r = {0};
  pthread_t thread;
  void *result;
  assert_int_equal(tp_thread_start(&thread, report_main, &r), 0);
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_ptr_equal(result, &r);
  assert_true(pthread_equal(thread, r.self));
  return r;
}

/* Wrong: a handler of the host runs on a thread of ours, or a crash cannot be caught there. */
static void a_thread_blocks_every_signal_but_the_four_of_a_crash(void **state) {
  (void)state;
  sigset_t before, after, mine;
  sigemptyset(&mine);
  sigaddset(&mine, SIGUSR2);
  sigaddset(&mine, SIGSEGV); /* blocked in the starter: not in the thread */
  pthread_sigmask(SIG_SETMASK, &mine, &before);
  report r = run_thread();
  pthread_sigmask(SIG_SETMASK, &before, &after);
  for (int s = 1; s <= SIGRTMAX; s++) {
    if (s == SIGKILL || s == SIGSTOP || (s > SIGSYS && s < SIGRTMIN)) continue;
    bool crash = s == SIGSEGV || s == SIGBUS || s == SIGFPE || s == SIGILL;
    if (sigismember(&r.blocked, s) != !crash) fail_msg("signal %d", s);
    assert_int_equal(sigismember(&after, s),
                     sigismember(&mine, s)); /* the starter's are as before */
  }
}

/* Wrong: what a pinned worker starts shares its one processor. */
static void a_pinned_thread_starts_unpinned_ones(void **state) {
  (void)state;
  cpu_set_t all, mine;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  for (unsigned n = 0; n < (unsigned)CPU_COUNT(&all); n++) {
    int cpu = tp_cpus_nth(&all, n);
    tp_thread_pin(cpu, &all);
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    report r = run_thread();
    tp_thread_pin(-1, &all);
    assert_int_equal(CPU_COUNT(&mine), 1);
    assert_true(CPU_ISSET(cpu, &mine));
    assert_true(CPU_EQUAL(&r.cpus, &all));
  }
  assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
  assert_true(CPU_EQUAL(&mine, &all));
  report r = run_thread();
  assert_true(CPU_EQUAL(&r.cpus, &all));
}

static void a_thread_that_cannot_be_started_is_an_error(void **state) {
  (void)state;
  report r = {0};
  pthread_t thread;
  sigset_t before, after;
  pthread_sigmask(SIG_BLOCK, NULL, &before);
  tp_fail_at(1);
  assert_int_equal(tp_thread_start(&thread, report_main, &r), ERR_MALLOC_FAILED);
  assert_int_equal(tp_fail_left(), 0);
  pthread_sigmask(SIG_BLOCK, NULL, &after);
  for (int s = 1; s <= SIGRTMAX; s++)
    assert_int_equal(sigismember(&after, s), sigismember(&before, s));
  assert_int_equal(CPU_COUNT(&r.cpus), 0); /* it has not run */
  run_thread();
}

/* --- clock ------------------------------------------------------------------------------------ */

static void the_clock_is_the_monotonic_one_and_never_goes_back(void **state) {
  (void)state;
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  uint64_t last = (uint64_t)t.tv_sec * TP_NS_PER_S + (uint64_t)t.tv_nsec;
  for (int i = 0; i < 10000; i++) {
    uint64_t now = tp_now_ns();
    assert_true(now >= last);
    last = now;
    tp_pause();
  }
  clock_gettime(CLOCK_MONOTONIC, &t);
  assert_true((uint64_t)t.tv_sec * TP_NS_PER_S + (uint64_t)t.tv_nsec >= last);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_is_zeroed_and_begins_a_cache_line),
      cmocka_unit_test(sizes_that_cannot_be_are_refused),
      cmocka_unit_test(the_nth_attempt_fails_and_no_other),
      cmocka_unit_test(one_attempt_fails_though_many_threads_make_them),
      cmocka_unit_test(every_error_has_a_name_and_a_text_of_its_own),
      cmocka_unit_test(a_quota_is_rounded_up_to_whole_processors),
      cmocka_unit_test(counts_and_lists_the_processors_of_the_mask),
      cmocka_unit_test(numbers_stay_below_their_bound_and_reach_all_of_it),
      cmocka_unit_test(unlike_seeds_give_unlike_sequences),
      cmocka_unit_test(a_thread_blocks_every_signal_but_the_four_of_a_crash),
      cmocka_unit_test(a_pinned_thread_starts_unpinned_ones),
      cmocka_unit_test(a_thread_that_cannot_be_started_is_an_error),
      cmocka_unit_test(the_clock_is_the_monotonic_one_and_never_goes_back),
  };
  return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
