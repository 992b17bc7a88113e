/* test_updater.c - mailboxes and updaters: split, merge, growth, exactly once, shutdown (rules U1..U4: pool/updater.h). */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "help.h"
#include "pool/calls.h"
#include "pool/updater.h"

static threadpool_t *pool;

static void begin(threadpool_options o) {
  pool = threadpool_create_with(&o, NULL);
  assert_non_null(pool);
}
static void end(void) {
  assert_int_equal(threadpool_shutdown(pool), 0);
}
static threadpool_counters counters(void) {
  threadpool_counters c;
  assert_int_equal(threadpool_stats(pool, -1, &c), 0);
  return c;
}

/* --- the updaters by themselves: U1 to U4 */

typedef struct item {
  tp_letter letter;
  _Atomic int opened;
} item;

static _Atomic long opened;
static void open_item(tp_letter *letter) {
  item *i = (item *)letter;
  test_must(tp_add(&i->opened, 1, relaxed) == 0); /* U3 */
  tp_add(&opened, 1, release);
}

enum { SENDERS = 3 };
typedef struct sender {
  tp_updaters *u;
  item *items;
  int count;
} sender;

static void *send_all(void *arg) {
  sender *s = arg;
  for (int at = 0, size; at < s->count; at += size) {
    size = 1 + at % 7;
    if (size > s->count - at) size = s->count - at;
    for (int k = 0; k < size; k++)
      s->items[at + k].letter.next = k + 1 < size ? &s->items[at + k + 1].letter : NULL;
    tp_updaters_send(s->u, &s->items[at].letter);
    if (at % 64 == 0) sched_yield(); /* so that mailboxes run empty, and updaters end */
  }
  return NULL;
}

/* Wrong: a letter stays in its mailbox (the wait never ends), or is opened twice. */
static void every_letter_is_opened_once(void **state) {
  (void)state;
  int count = (int)test_size(20000, 100000);
  begin((threadpool_options){.workers = 3});
  tp_updaters *u = tp_updaters_new(pool->tasks, open_item);
  assert_non_null(u);
  item *items = calloc((size_t)SENDERS * (size_t)count, sizeof *items);
  assert_non_null(items);
  for (int round = 0; round < 3; round++) {
    memset(items, 0, (size_t)SENDERS * (size_t)count * sizeof *items);
    tp_store(&opened, 0, relaxed);
    pthread_t thread[SENDERS];
    sender s[SENDERS];
    for (int i = 0; i < SENDERS; i++) {
      s[i] = (sender){u, items + (size_t)i * (size_t)count, count};
      assert_int_equal(pthread_create(&thread[i], NULL, send_all, &s[i]), 0);
    }
    for (int i = 0; i < SENDERS; i++) pthread_join(thread[i], NULL);
    test_wait(tp_load(&opened, acquire) == (long)SENDERS * count);
  }
  threadpool_counters c = counters();
  assert_true(c.splits > 0);
  assert_true(c.splits >= c.merges);
  end();
  tp_updaters_free(u);
  free(items);
}

/* Each letter comes when the updater that opened the last one is about to end, at one moment or another of that. Wrong
 * (`again` not looked at, or not set): the letter stays where it is, and nobody comes. */
static void a_letter_that_meets_a_retiring_updater_is_opened(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 2});
  tp_updaters *u = tp_updaters_new(pool->tasks, open_item);
  assert_non_null(u);
  tp_store(&opened, 0, relaxed);
  long rounds = test_size(20000, 400000);
  for (long i = 0; i < rounds; i++) {
    item one = {0};
    tp_updaters_send(u, &one.letter);
    test_wait(tp_load(&opened, acquire) == i + 1);
    for (long k = i % 97; k > 0; k--) tp_pause();
  }
  end();
  tp_updaters_free(u);
}

/* Without a task for an updater the sender reads. */
static void without_a_task_the_sender_reads(void **state) {
  (void)state;
  begin((threadpool_options){.workers = 1});
  tp_updaters *u = tp_updaters_new(pool->tasks, open_item);
  assert_non_null(u);
  tp_store(&opened, 0, relaxed);
  item one = {0};
  tp_tasks_drain(pool->tasks, 0); /* no task is to be had any more */
  tp_updaters_send(u, &one.letter);
  assert_int_equal(tp_load(&opened, acquire), 1);
  end();
  tp_updaters_free(u);
}

/* --- as a program meets them */

static _Atomic bool hold;
static void block(task_t *task) {
  (void)task;
  while (tp_load(&hold, acquire)) tp_pause();
}

/* A backlog that waits until both workers are free: the first updater splits, then all end and merge. The table grows
 * under it, from what was there at first to one record for each request: five segments. */
static void a_backlog_splits_and_merges(void **state) {
  (void)state;
  enum { N = 20000, BATCH = 64 };
  begin((threadpool_options){.workers = 2});
  uint64_t *ids = calloc(N, sizeof *ids);
  assert_non_null(ids);
  threadpool_handler h = {.name = "block", .opcode = 100, .run = block};
  assert_int_equal(threadpool_register(pool, &h), 0);
  threadpool_request q[BATCH];
  for (int i = 0; i < BATCH; i++)
    q[i] = (threadpool_request){.json = "{\"op\": \"echo\", \"args\": {\"text\": \"hello\"}}"};
  uint32_t first = tp_slab_used(&pool->requests->slab);
  assert_in_range(first, 256, 512);
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i + BATCH <= N; i += BATCH)
      assert_int_equal(threadpool_submit_batch(pool, q, BATCH, ids + i), BATCH);
    assert_in_range(tp_slab_used(&pool->requests->slab), N - BATCH, 2 * N);
    for (int i = 0; i + BATCH <= N; i += BATCH)
      for (int k = 0; k < BATCH; k++) {
        result_t *r = threadpool_wait_result(pool, ids[i + k], UINT32_MAX);
        assert_int_equal(r->status, 0);
        assert_string_equal(r->data, "{\"text\":\"hello\"}");
        threadpool_result_free(r);
      }
    threadpool_counters c = counters();
    if (c.splits > 0 && c.merges > 0 && c.decoded > 0) break;
    assert_true(round < 199);
  }
  /* When no worker is free a request is decoded at once: its error is there though nobody reads mailboxes. */
  tp_store(&hold, true, relaxed);
  uint64_t held[2];
  for (int i = 0; i < 2; i++) held[i] = threadpool_submit(pool, "{\"op\": \"block\"}");
  for (int i = 0; i < 2; i++) test_wait(threadpool_status(pool, held[i]) == THREADPOOL_RUNNING);
  for (int i = 0; i < BATCH; i++) q[i].json = "no JSON";
  assert_int_equal(threadpool_submit_batch(pool, q, BATCH, ids), BATCH);
  for (int i = 0; i < BATCH; i++) {
    result_t *r = threadpool_poll_result(pool, ids[i]);
    assert_non_null(r);
    assert_int_equal(r->status, ERR_INVALID_JSON);
    threadpool_result_free(r);
  }
  tp_store(&hold, false, release);
  for (int i = 0; i < 2; i++)
    threadpool_result_free(threadpool_wait_result(pool, held[i], UINT32_MAX));
  free(ids);
  end();
}

/* An updater at work has a backlog. Wrong: a request by itself, as long as a bundle, waits at its end; DESIGN: it must not
 * wait for a worker just to be read. */
static _Atomic bool reading;
static void read_slowly(tp_letter *letter) {
  tp_store(&reading, true, release);
  while (tp_load(&hold, acquire)) tp_pause();
  tp_call_open(letter);
}
static void a_request_by_itself_does_not_wait_behind_a_backlog(void **state) {
  (void)state;
  enum { BATCH = 32, LONG = 5000 };
  begin((threadpool_options){.workers = 1});
  tp_updaters *before = pool->requests->updaters;
  pool->requests->updaters = tp_updaters_new(pool->tasks, read_slowly);
  assert_non_null(pool->requests->updaters);
  tp_store(&hold, true, relaxed);
  tp_store(&reading, false, relaxed);
  threadpool_request q[BATCH];
  uint64_t ids[8 * BATCH];
  for (int i = 0; i < BATCH; i++) q[i] = (threadpool_request){.json = "no JSON"};
  for (int i = 0; i < 8; i++) {
    if (i == 0) test_wait(test_all_parked(pool));
    assert_int_equal(threadpool_submit_batch(pool, q, BATCH, ids + i * BATCH), BATCH);
    test_wait(tp_load(&reading, acquire));
    for (int k = 0; k < BATCH; k++) /* batches keep their way */
      assert_int_equal(threadpool_status(pool, ids[i * BATCH + k]), THREADPOOL_QUEUED);
  }
  char text[LONG + 1] = {0};
  memset(text, 'x', LONG);
  result_t *r = threadpool_poll_result(pool, threadpool_submit(pool, text));
  assert_non_null(r);
  assert_int_equal(r->status, ERR_INVALID_JSON);
  threadpool_result_free(r);
  tp_store(&hold, false, release);
  for (int i = 0; i < 8 * BATCH; i++) {
    r = threadpool_wait_result(pool, ids[i], UINT32_MAX);
    assert_int_equal(r->status, ERR_INVALID_JSON);
    threadpool_result_free(r);
  }
  tp_updaters *mine = pool->requests->updaters;
  test_wait(test_all_parked(pool)); /* its updaters have ended */
  pool->requests->updaters = before;
  end();
  tp_updaters_free(mine);
}

/* The growth itself, held in the middle: nobody waits for it but who needs the new records. Wrong: workers, or those who
 * fetch, take the lock of the table as well, and the waits here never end. */
static _Atomic int accepted;
static void *submit_many(void *arg) {
  (void)arg;
  for (int i = 0; i < 200; i++) {
    uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\"}");
    test_must(id && threadpool_detach(pool, id) == 0);
    tp_add(&accepted, 1, release);
  }
  return NULL;
}
static void workers_go_on_while_the_table_grows(void **state) {
  (void)state;
  enum { N = 30 };
  begin((threadpool_options){.workers = 2, .initial_capacity = 1});
  threadpool_handler h = {.name = "block", .opcode = 100, .run = block};
  assert_int_equal(threadpool_register(pool, &h), 0);
  tp_store(&hold, true, relaxed);
  tp_store(&accepted, 0, relaxed);
  uint64_t ids[N];
  result_t *r[N];
  for (int i = 0; i < N; i++)
    ids[i] = threadpool_submit(pool, i < 2 ? "{\"op\": \"block\"}" : "{\"op\": \"echo\"}");
  tp_slab *slab = &pool->requests->slab;
  uint32_t before = tp_slab_used(slab);
  tp_lock_acquire(&slab->lock);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, submit_many, NULL), 0);
  tp_store(&hold, false, release);
  for (int i = 0; i < N; i++) r[i] = threadpool_wait_result(pool, ids[i], UINT32_MAX);
  tp_lock_release(&slab->lock);
  for (int i = 0; i < N; i++) {
    assert_int_equal(r[i]->status, 0);
    threadpool_result_free(r[i]);
  }
  pthread_join(thread, NULL);
  assert_int_equal(tp_load(&accepted, acquire), 200);
  assert_true(tp_slab_used(slab) > before);
  end();
}

/* U4: a shutdown in the middle of a backlog; each request has its callback. */
static _Atomic int finals;
static void count_final(result_t *r, void *user_data) {
  (void)user_data;
  test_must(r->status == 0 || r->status == ERR_CANCELLED);
  test_must(r->outer_id == 7);
  if (r->flags & RESULT_FINAL) tp_add(&finals, 1, relaxed);
  threadpool_result_free(r);
}
static void a_shutdown_finishes_what_was_sent(void **state) {
  (void)state;
  enum { N = 2000 };
  static threadpool_request q[N];
  static uint64_t ids[N];
  for (int i = 0; i < N; i++)
    q[i] = (threadpool_request){
        .json = "{\"op\": \"sleep\", \"task_id\": 7, \"args\": {\"ms\": 60000}}",
        .deliver = THREADPOOL_BY_CALLBACK,
        .callback = count_final};
  for (int round = 0; round < 20; round++) {
    begin((threadpool_options){.workers = 2, .drain_ms = -1});
    tp_store(&finals, 0, relaxed);
    size_t n = threadpool_submit_batch(pool, q, N, ids);
    assert_int_equal(n, N);
    /* Also one that is cancelled, maybe while it is in its mailbox. */
    int cancelled = threadpool_cancel(pool, ids[N - 1]);
    assert_true(cancelled == 0 || cancelled == 1);
    end();
    assert_int_equal(tp_load(&finals, relaxed), N);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_letter_is_opened_once),
      cmocka_unit_test(a_letter_that_meets_a_retiring_updater_is_opened),
      cmocka_unit_test(without_a_task_the_sender_reads),
      cmocka_unit_test(a_backlog_splits_and_merges),
      cmocka_unit_test(a_request_by_itself_does_not_wait_behind_a_backlog),
      cmocka_unit_test(workers_go_on_while_the_table_grows),
      cmocka_unit_test(a_shutdown_finishes_what_was_sent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
