/* harness.c - the workloads, seen from outside: timing, counting, checking. */
#define _GNU_SOURCE
#include "harness.h"
#include "harness_json.h"
#include "harness_vector.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  NO_SUCH_WORKLOAD = 77,

  FIB_N = 35,
  FIB_RESULT = 9227465,
  FIB_FORKS = 14930351, /* calls with n >= 2 */
  FIB_WARM_N = 25,
  FIB_WARM_RESULT = 75025,

  YIELD_TASKS = 100,
  YIELD_TIMES = 10000,

  SORT_ITEMS = 10000000,
  SORT_WARM_ITEMS = 100000,

  MAX_THREADS = 4096,
};

static const uint64_t MS = 1000000;

void bench_fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  exit(1);
}

/* -- clock ------------------------------------------------------------------------------- */

static uint64_t read_clock(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now(void) {
  return read_clock(CLOCK_MONOTONIC);
}

static void rest(uint64_t ns) {
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

/* -- samples ----------------------------------------------------------------------------- */

static struct {
  int wanted;
  int taken;
  uint64_t budget; /* ns; no sample is begun after it, but the first */
  uint64_t begin;
} samples;

static bool more_samples(void) {
  if (samples.taken == 0) {
    samples.begin = now();
    return samples.wanted > 0;
  }
  return samples.taken < samples.wanted && now() - samples.begin < samples.budget;
}

static void sample(double value) {
  samples.taken++;
  printf("%.6g\n", value);
}

/* -- counting tasks ---------------------------------------------------------------------- */

/* Only its own thread writes a slot, so that a task pays no atomic read-modify-write and
 * the count costs all implementations the same. Relaxed: the sum is only compared with the
 * number of tasks posted, no data is published through it. */
typedef struct {
  _Alignas(128) _Atomic int64_t count;
} count_slot;

static count_slot slots[MAX_THREADS];
static _Atomic int slots_used;
static _Thread_local count_slot *own_slot;

static count_slot *take_slot(void) {
  int i = atomic_fetch_add(&slots_used, 1);
  if (i >= MAX_THREADS) bench_fail("more than %d threads", MAX_THREADS);
  return own_slot = &slots[i];
}

void bench_count(void) {
  count_slot *s = own_slot;
  if (s == NULL) s = take_slot();
  int64_t n = atomic_load_explicit(&s->count, memory_order_relaxed);
  atomic_store_explicit(&s->count, n + 1, memory_order_relaxed);
}

int64_t bench_counted(void) {
  int64_t sum = 0;
  int used = atomic_load(&slots_used);
  for (int i = 0; i < used; i++) {
    sum += atomic_load_explicit(&slots[i].count, memory_order_relaxed);
  }
  return sum;
}

/* Sleeps in short steps (some 70 us with the kernel's timer slack) instead of spinning: the
 * workers need the cores. On a million tasks the step is worth less than 0.1 ns a task. */
void bench_wait_for_count(int64_t n) {
  while (bench_counted() < n) rest(20000);
}

static void check_count(const char *what, int64_t expected) {
  int64_t n = bench_counted();
  if (n != expected) {
    bench_fail("%s: %lld executed, %lld expected", what, (long long)n, (long long)expected);
  }
}

/* -- fork-join --------------------------------------------------------------------------- */

static void call_fib(const bench_impl *impl, int n, int64_t expected) {
  int64_t result = impl->fib(n);
  if (result != expected) {
    bench_fail("fib(%d) is %lld, not %lld", n, (long long)expected, (long long)result);
  }
}

static void fib(const bench_impl *impl) {
  call_fib(impl, FIB_WARM_N, FIB_WARM_RESULT);
  while (more_samples()) {
    uint64_t begin = now();
    call_fib(impl, FIB_N, FIB_RESULT);
    sample((double)(now() - begin) / FIB_FORKS);
  }
}

static void call_tree(const bench_impl *impl, int depth) {
  int64_t nodes = impl->tree(depth);
  int64_t expected = ((int64_t)2 << depth) - 1;
  if (nodes != expected) {
    bench_fail("a tree of depth %d has %lld nodes, not %lld", depth, (long long)expected,
               (long long)nodes);
  }
}

static void tree_hot(const bench_impl *impl, int depth) {
  int batch = depth <= 10 ? 50 : 1;
  uint64_t warm = now();
  do {
    call_tree(impl, depth);
  } while (now() - warm < 20 * MS);
  while (more_samples()) {
    uint64_t begin = now();
    for (int i = 0; i < batch; i++) call_tree(impl, depth);
    sample((double)(now() - begin) / batch / 1e3);
  }
}

static void tree_cold(const bench_impl *impl, int depth) {
  call_tree(impl, depth);
  call_tree(impl, depth);
  while (more_samples()) {
    rest(5 * MS);
    uint64_t begin = now();
    call_tree(impl, depth);
    sample((double)(now() - begin) / 1e3);
  }
}

/* -- tasks from outside ------------------------------------------------------------------ */

typedef struct {
  const bench_impl *impl;
  int number;
  int64_t n;
  pthread_barrier_t *start;
} producer;

static void *produce(void *arg) {
  producer *p = arg;
  pthread_barrier_wait(p->start);
  p->impl->submit(p->number, p->n);
  return NULL;
}

/* Posts n tasks from that many threads; returns the time until all have run. */
static uint64_t submit_all(const bench_impl *impl, int producers, int64_t n) {
  int64_t target = bench_counted() + n;
  uint64_t begin, end;
  if (producers == 1) {
    begin = now();
    impl->submit(0, n);
    bench_wait_for_count(target);
    end = now();
  } else {
    pthread_barrier_t start;
    pthread_t threads[BENCH_PRODUCERS];
    producer p[BENCH_PRODUCERS];
    pthread_barrier_init(&start, NULL, (unsigned)producers + 1);
    for (int i = 0; i < producers; i++) {
      p[i] = (producer){impl, i, n / producers, &start};
      if (pthread_create(&threads[i], NULL, produce, &p[i]) != 0) bench_fail("no thread");
    }
    rest(1 * MS); /* until they all wait at the barrier */
    begin = now();
    pthread_barrier_wait(&start);
    bench_wait_for_count(target);
    end = now();
    for (int i = 0; i < producers; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
  }
  if (impl->reap != NULL) impl->reap();
  check_count("submit", target);
  return end - begin;
}

static void submit(const bench_impl *impl, int producers) {
  submit_all(impl, producers, BENCH_TASKS / 100);
  while (more_samples()) {
    sample((double)submit_all(impl, producers, BENCH_TASKS) / BENCH_TASKS);
  }
}

/* -- waking ------------------------------------------------------------------------------ */

enum { PENDING, WAITED_FOR, DONE };

static _Atomic uint32_t woken;      /* PENDING.., and the submitter's futex */
static _Atomic uint64_t woken_time; /* published by `woken` */

void bench_woken(void) {
  atomic_store_explicit(&woken_time, now(), memory_order_relaxed);
  /* release: pairs with the submitter's acquire loads of `woken`. */
  if (atomic_exchange_explicit(&woken, DONE, memory_order_acq_rel) == WAITED_FOR) {
    syscall(SYS_futex, &woken, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
  }
}

static void sleep_until_woken(void) {
  uint32_t expected = PENDING;
  atomic_compare_exchange_strong(&woken, &expected, WAITED_FOR);
  while (atomic_load_explicit(&woken, memory_order_acquire) != DONE) {
    syscall(SYS_futex, &woken, FUTEX_WAIT_PRIVATE, WAITED_FOR, NULL, NULL, 0);
  }
}

static void spin_until_woken(void) {
  while (atomic_load_explicit(&woken, memory_order_acquire) != DONE) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
}

static double wake_once(const bench_impl *impl, bool busy) {
  atomic_store(&woken, PENDING);
  rest(10 * MS);
  uint64_t begin = now();
  impl->wake();
  if (busy) {
    spin_until_woken();
  } else {
    sleep_until_woken();
  }
  double latency = (double)(atomic_load(&woken_time) - begin) / 1e3;
  if (impl->reap != NULL) impl->reap();
  return latency;
}

static void wake(const bench_impl *impl, bool busy) {
  for (int i = 0; i < 3; i++) wake_once(impl, busy);
  while (more_samples()) sample(wake_once(impl, busy));
}

/* -- tasks inside the pool --------------------------------------------------------------- */

static void spawn_await(const bench_impl *impl) {
  int64_t expected = bench_counted() + BENCH_TASKS / 100;
  impl->spawn_await(BENCH_TASKS / 100);
  check_count("spawn_await", expected);
  while (more_samples()) {
    expected += BENCH_TASKS;
    uint64_t begin = now();
    impl->spawn_await(BENCH_TASKS);
    uint64_t end = now();
    check_count("spawn_await", expected);
    sample((double)(end - begin) / BENCH_TASKS);
  }
}

static void yield(const bench_impl *impl) {
  int64_t expected = bench_counted() + YIELD_TASKS * (YIELD_TIMES / 100);
  impl->yield(YIELD_TASKS, YIELD_TIMES / 100);
  check_count("yield", expected);
  while (more_samples()) {
    expected += (int64_t)YIELD_TASKS * YIELD_TIMES;
    uint64_t begin = now();
    impl->yield(YIELD_TASKS, YIELD_TIMES);
    uint64_t end = now();
    check_count("yield", expected);
    sample((double)(end - begin) / ((double)YIELD_TASKS * YIELD_TIMES));
  }
}

/* -- sort -------------------------------------------------------------------------------- */

/* Fills with the same numbers every time (xorshift64); returns their sum. */
static uint64_t fill(uint64_t *items, size_t n) {
  uint64_t x = 88172645463325252u, sum = 0;
  for (size_t i = 0; i < n; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    items[i] = x;
    sum += x;
  }
  return sum;
}

static uint64_t sort_once(const bench_impl *impl, uint64_t *items, size_t n) {
  uint64_t sum = fill(items, n);
  uint64_t begin = now();
  impl->sort(items, n);
  uint64_t end = now();
  for (size_t i = 0; i < n; i++) {
    if (i > 0 && items[i - 1] > items[i]) bench_fail("not sorted at %zu", i);
    sum -= items[i];
  }
  if (sum != 0) bench_fail("sorted, but not the same numbers");
  return end - begin;
}

static void sort(const bench_impl *impl) {
  uint64_t *items = malloc(SORT_ITEMS * sizeof *items);
  if (items == NULL) bench_fail("out of memory");
  sort_once(impl, items, SORT_WARM_ITEMS);
  while (more_samples()) sample((double)sort_once(impl, items, SORT_ITEMS) / 1e6);
  free(items);
}

/* -- idle -------------------------------------------------------------------------------- */

/* The 2 s begin as soon as the work ends: what a pool burns before it sleeps counts. */
static void idle(const bench_impl *impl) {
  if (impl->tree == NULL && impl->submit == NULL) exit(NO_SUCH_WORKLOAD);
  while (more_samples()) {
    if (impl->tree != NULL) call_tree(impl, 15);
    if (impl->submit != NULL) submit_all(impl, 1, 1000);
    uint64_t begin = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    rest(2000 * MS);
    sample((double)(read_clock(CLOCK_PROCESS_CPUTIME_ID) - begin) / 1e3);
  }
}

/* -- requests ----------------------------------------------------------------------------- */

static void json(const bench_json *impl, const json_workload *w) {
  bench_json_sample(impl, w, true);
  while (more_samples()) sample(bench_json_sample(impl, w, false));
}

/* -- vectors ------------------------------------------------------------------------------ */

static void topk(const bench_impl *impl) {
  bench_vector_start();
  for (int i = 0; i < 3; i++) bench_vector_sample(impl);
  while (more_samples()) sample(bench_vector_sample(impl));
}

/* -- main -------------------------------------------------------------------------------- */

static int64_t number(const char *text, const char *what) {
  char *end;
  errno = 0;
  long n = strtol(text, &end, 10);
  if (errno != 0 || *end != '\0' || n < 1 || n > 1000000) {
    bench_fail("%s: a number from 1 to 1000000 is expected, not \"%s\"", what, text);
  }
  return n;
}

/* Runs the workload; false: the implementation has no such one. */
static bool dispatch(const bench_impl *impl, const char *name) {
  int depth;
  char tail[8] = "";
  const json_workload *requests = bench_json_find(impl->json, name);
#define IS(text) (strcmp(name, text) == 0)
  if (IS("fib") && impl->fib != NULL) {
    fib(impl);
  } else if (sscanf(name, "tree%d%7s", &depth, tail) >= 1 && impl->tree != NULL) {
    if (depth != 10 && depth != 15 && depth != 20) return false;
    if (strcmp(tail, "_cold") == 0) {
      tree_cold(impl, depth);
    } else if (tail[0] == '\0') {
      tree_hot(impl, depth);
    } else {
      return false;
    }
  } else if (IS("submit") && impl->submit != NULL) {
    submit(impl, 1);
  } else if (IS("submit4") && impl->submit != NULL && !impl->one_submitter) {
    submit(impl, BENCH_PRODUCERS);
  } else if (IS("wake") && impl->wake != NULL) {
    wake(impl, false);
  } else if (IS("wake_busy") && impl->wake != NULL) {
    wake(impl, true);
  } else if (IS("spawn_await") && impl->spawn_await != NULL) {
    spawn_await(impl);
  } else if (IS("yield") && impl->yield != NULL) {
    yield(impl);
  } else if (IS("sort") && impl->sort != NULL) {
    sort(impl);
  } else if (IS("idle")) {
    idle(impl);
  } else if (IS("vector_topk") && impl->topk != NULL) {
    topk(impl);
  } else if (requests != NULL) {
    json(impl->json, requests);
  } else {
    return false;
  }
#undef IS
  return true;
}

int bench_main(int argc, char **argv, const bench_impl *impl) {
  if (argc == 2 && strcmp(argv[1], "version") == 0) {
    puts(impl->version);
    return 0;
  }
  if (argc != 4) bench_fail("usage: %s <workload> <threads> <samples> | version", argv[0]);

  int threads = (int)number(argv[2], "threads");
  const char *budget = getenv("BENCH_BUDGET_MS");
  samples.wanted = (int)number(argv[3], "samples");
  samples.budget = (uint64_t)(budget != NULL ? number(budget, "BENCH_BUDGET_MS") : 1000) * MS;

  if (impl->start != NULL) impl->start(threads);
  bool known = dispatch(impl, argv[1]);
  if (impl->stop != NULL) impl->stop();
  return known ? 0 : NO_SUCH_WORKLOAD;
}
