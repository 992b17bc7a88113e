/* ours_json.c - requests in JSON, over the public interface only; and symbols, pinned as handlers have it done. */
#include "ours.h"

#include <stdio.h>
#include <time.h>

#include <pool/symbols.h>

#include "parse.h"

enum {
  IN_FLIGHT_BYTES = 8 << 20,
  IN_FLIGHT = 4096,  /* far below max_pending, and more than a short sleep can use up */
  DRAIN_EVERY = 256, /* requests */
  BATCH_MOST = 256,
  SYMBOLS = 64,
};

static char names[SYMBOLS][16];

static void nothing(task_t *task) {
  (void)task;
}

void json_start(void) {
  const threadpool_handler h = {.name = "nothing", .opcode = -1, .run = nothing};
  int error = threadpool_register(pool, &h);
  if (error) bench_fail("threadpool_register: %s", threadpool_error_text(error));
  for (int i = 0; i < SYMBOLS; i++) {
    snprintf(names[i], sizeof names[i], "symbol_%d", i);
    error = symbol_register(threadpool_symbols(pool), names[i], names[i], sizeof names[i]);
    if (error) bench_fail("symbol_register: %s", threadpool_error_text(error));
  }
}

static void check_and_free(const bench_request *q, result_t *r) {
  if (r == NULL) bench_fail("no result");
  if (r->status != 0) bench_fail("a result says %d: %s", r->status, r->error_msg);
  bench_check(q, r->data, r->data_size);
  threadpool_result_free(r);
}

static void roundtrip(const bench_request *q) {
  uint64_t id = threadpool_submit(pool, q->text);
  if (id == 0) bench_fail("threadpool_submit: %s", threadpool_last_error());
  check_and_free(q, threadpool_wait_result(pool, id, 10000));
}

/* Returns how many came. */
static int64_t drain(const bench_request *q) {
  result_t *results[256];
  int64_t sum = 0;
  size_t got;
  while ((got = threadpool_completions(pool, results, 256)) > 0) {
    for (size_t i = 0; i < got; i++) check_and_free(q, results[i]);
    sum += (int64_t)got;
  }
  return sum;
}

/* The submitter sleeps when it has nothing to do, as the workers need the cores. */
static int64_t drain_or_rest(const bench_request *q) {
  int64_t got = drain(q);
  if (got == 0) nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  return got;
}

static int64_t batch(const bench_request *q, int64_t n, int batch) {
  threadpool_request requests[BATCH_MOST];
  uint64_t ids[BATCH_MOST];
  for (int i = 0; i < batch; i++) {
    requests[i] =
        (threadpool_request){.json = q->text, .length = q->length, .deliver = THREADPOOL_BY_QUEUE};
  }
  int64_t sent = 0, received = 0, drained_at = 0;
  int64_t most = IN_FLIGHT_BYTES / (int64_t)q->length; /* what is under way stays in the caches */
  if (most > IN_FLIGHT) most = IN_FLIGHT;
  while (sent < n) {
    size_t want = (size_t)(n - sent < batch ? n - sent : batch);
    while (sent - received + (int64_t)want > most) received += drain_or_rest(q);
    if (threadpool_submit_batch(pool, requests, want, ids) != want) {
      bench_fail("threadpool_submit_batch: %s", threadpool_last_error());
    }
    sent += (int64_t)want;
    if (sent - drained_at < DRAIN_EVERY) continue;
    received += drain(q);
    drained_at = sent;
  }
  while (received < sent) received += drain_or_rest(q);
  return received;
}

static void parse(const bench_request *q, int64_t n) {
  int64_t target = bench_counted() + n;
  for (int64_t i = 0; i < n; i++) {
    parsed p = parse_copy(q->text, q->length);
    parse_free(&p);
    post_empty();
  }
  bench_wait_for_count(target);
}

static int64_t parse_batch(const bench_request *q, int64_t n, int batch) {
  (void)batch;
  parse(q, n);
  return n;
}

static void symbols(int64_t n) {
  symbol_table_t *table = threadpool_symbols(pool);
  for (int64_t i = 0; i < n; i++) {
    const char *name = names[i % SYMBOLS];
    tp_symbol_pin_t pin;
    if (symbol_resolve(table, name, NULL) != name) bench_fail("%s is not found", name);
    if (tp_symbol_pin(table, name, strlen(name), SYMBOL_READ, &pin)) bench_fail("%s: no pin", name);
    tp_symbol_unpin(&pin);
  }
}

const bench_json json_requests = {
    .roundtrip = roundtrip, .batch = batch, .parse = parse, .symbols = symbols};
const bench_json json_floor = {.batch = parse_batch};
