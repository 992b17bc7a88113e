/* harness_json.c - requests in JSON: what they say, and how they are timed. */
#define _GNU_SOURCE
#include "harness_json.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  ROUNDTRIPS = 1000, /* of one sample */
  REQUESTS = 200000,
  LARGE_REQUESTS = 5000,
  LOOKUPS = 2000000, /* of each thread */
  LOOKUP_THREADS = 2,
  SMALL_BYTES = 64,
  LARGE_BYTES = 32768, /* at most, and a row less at least */
};

typedef enum { ROUNDTRIP, BATCH, PARSE, DECODE, SYMBOLS } kind;

struct json_workload {
  const char *name;
  kind kind;
  int parameter; /* ROUNDTRIP: percentile; BATCH, DECODE: requests at once; SYMBOLS: threads */
};

static const json_workload workloads[] = {
    {"json_roundtrip", ROUNDTRIP, 50}, {"json_roundtrip_p99", ROUNDTRIP, 99},
    {"json_batch1", BATCH, 1},         {"json_batch16", BATCH, 16},
    {"json_batch256", BATCH, 256},     {"json_parse", PARSE, 0},
    {"json_decode1", DECODE, 16},      {"json_decode2", DECODE, 16},
    {"symbols1", SYMBOLS, 1},          {"symbols2", SYMBOLS, LOOKUP_THREADS},
};

const json_workload *bench_json_find(const bench_json *impl, const char *name) {
  if (impl == NULL) return NULL;
  for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
    const json_workload *w = &workloads[i];
    if (strcmp(w->name, name) != 0) continue;
    bool has = w->kind == ROUNDTRIP ? impl->roundtrip != NULL
               : w->kind == PARSE   ? impl->parse != NULL
               : w->kind == SYMBOLS ? impl->symbols != NULL
                                    : impl->batch != NULL;
    return has ? w : NULL;
  }
  return NULL;
}

/* -- the requests ------------------------------------------------------------------------ */

/* 64 bytes. Its result is the value of "args". */
static bench_request small_request(void) {
  static const char text[] =
      "{\"op\":\"echo\",\"args\":{\"text\":\"a text that has thirty-two bytes\"}}";
  static const char result[] = "{\"text\":\"a text that has thirty-two bytes\"}";
  _Static_assert(sizeof text - 1 == SMALL_BYTES, "");
  return (bench_request){text, sizeof text - 1, result, sizeof result - 1};
}

/* Rows of a table: short strings, numbers of both kinds, constants. It has no result. */
static bench_request large_request(void) {
  static char text[LARGE_BYTES + 1];
  size_t length = (size_t)sprintf(text, "{\"op\":\"nothing\",\"args\":{\"rows\":[");
  for (int i = 0;; i++) {
    char row[128];
    int n = sprintf(row, "%s{\"id\":%d,\"name\":\"row %d\",\"value\":%d.25,\"on\":%s}",
                    i > 0 ? "," : "", i, i, i * 7, i % 2 ? "true" : "false");
    if (length + (size_t)n + 3 > LARGE_BYTES) break;
    memcpy(text + length, row, (size_t)n);
    length += (size_t)n;
  }
  memcpy(text + length, "]}}", 4);
  return (bench_request){text, length + 3, NULL, 0};
}

void bench_check(const bench_request *r, const void *data, size_t size) {
  if (size != r->result_length || (size > 0 && memcmp(data, r->result, size) != 0)) {
    bench_fail("the result is \"%.*s\", not \"%s\"", (int)size, data ? (const char *)data : "",
               r->result ? r->result : "");
  }
}

/* -- timing ------------------------------------------------------------------------------ */

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static double roundtrips(const bench_json *impl, const bench_request *r, int percentile) {
  static uint64_t took[ROUNDTRIPS];
  for (int i = 0; i < ROUNDTRIPS; i++) {
    uint64_t begin = now();
    impl->roundtrip(r);
    took[i] = now() - begin;
  }
  qsort(took, ROUNDTRIPS, sizeof *took, compare);
  return (double)took[ROUNDTRIPS * percentile / 100] / 1e3;
}

static double batches(const bench_json *impl, const bench_request *r, int64_t n, int batch) {
  uint64_t begin = now();
  int64_t results = impl->batch(r, n, batch);
  uint64_t end = now();
  if (results != n) bench_fail("%lld results, %lld expected", (long long)results, (long long)n);
  return (double)(end - begin) / (double)n;
}

static double parses(const bench_json *impl, const bench_request *r, int64_t n) {
  int64_t target = bench_counted() + n;
  uint64_t begin = now();
  impl->parse(r, n);
  uint64_t end = now();
  if (bench_counted() != target) bench_fail("not every empty task was executed");
  return (double)(end - begin) / (double)n;
}

typedef struct {
  const bench_json *impl;
  int number;
  int64_t n;
  pthread_barrier_t *start, *end;
} reader;

/* Threads that wake up together may share a core for the whole of a sample, with the next one idle. */
static void take_core(int number) {
  cpu_set_t all, one;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &all) || number-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

static void *look_up(void *arg) {
  const reader *r = arg;
  take_core(r->number);
  pthread_barrier_wait(r->start);
  r->impl->symbols(r->n);
  pthread_barrier_wait(r->end);
  return NULL;
}

/* A lookup of any of the threads: twice as many threads, half the time. */
static double lookups(const bench_json *impl, int64_t n, int threads) {
  pthread_barrier_t start, end;
  pthread_t thread[LOOKUP_THREADS];
  reader r[LOOKUP_THREADS];
  pthread_barrier_init(&start, NULL, (unsigned)threads + 1);
  pthread_barrier_init(&end, NULL, (unsigned)threads + 1);
  for (int i = 0; i < threads; i++) {
    r[i] = (reader){impl, i, n, &start, &end};
    if (pthread_create(&thread[i], NULL, look_up, &r[i]) != 0) bench_fail("no thread");
  }
  pthread_barrier_wait(&start);
  uint64_t begin = now();
  pthread_barrier_wait(&end);
  double took = (double)(now() - begin);
  for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
  pthread_barrier_destroy(&start);
  pthread_barrier_destroy(&end);
  return took / (double)(n * threads);
}

double bench_json_sample(const bench_json *impl, const json_workload *w, bool warm) {
  bench_request small = small_request(), large = large_request();
  int64_t share = warm ? 10 : 1;
  switch (w->kind) {
  case ROUNDTRIP: return roundtrips(impl, &small, w->parameter);
  case BATCH: return batches(impl, &small, REQUESTS / share, w->parameter);
  case PARSE: return parses(impl, &small, REQUESTS / share);
  case DECODE: return batches(impl, &large, LARGE_REQUESTS / share, w->parameter);
  case SYMBOLS: return lookups(impl, LOOKUPS / share, w->parameter);
  }
  return 0;
}
