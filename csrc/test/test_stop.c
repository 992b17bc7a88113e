/* test_stop.c - a pool that was shut down is gone: no thread, no descriptor, whatever its workers and its alarm
 * were doing when the last task ended.
 *
 * A thread that outlives the pool would be seen as a wait in vain, as a descriptor too many, or as a use after
 * free by AddressSanitizer. */
#include "test/help.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

static int entries(const char *path) {
  int n = 0;
  DIR *d = opendir(path);
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}
static int descriptors(void) {
  return entries("/proc/self/fd");
}
static int threads(void) {
  return entries("/proc/self/task");
}

/* --- the worker that let go of the last task may still be about to wake somebody for it */

static _Atomic int polls;

static tp_poll go_round(tp_task *t, void *arg) {
  (void)t, (void)arg;
  tp_add(&polls, 1, relaxed);
  return TP_YIELD;
}

static void go_round_and_stop(int tasks, int enough) {
  polls = 0;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 3, .drain_ms = -1});
  for (int i = 0; i < tasks; i++) {
    tp_spawn_spec spec = {.poll = go_round, .priority = TP_NORMAL};
    assert_int_equal(tp_spawn(pool->tasks, &spec, NULL), 0);
  }
  test_wait(tp_load(&polls, relaxed) > enough);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

static void a_shutdown_leaves_nothing_behind(void **state) {
  (void)state;
  go_round_and_stop(1, 0); /* what the C library or a sanitizer keeps is there now */
  test_wait(threads() <= 2);
  int fds = descriptors(), before = threads();
  for (int i = 0; i < test_size(400, 1000); i++) {
    go_round_and_stop(1 + i % 3, i % 7 * 500);
    assert_int_equal(descriptors(), fds);
    test_wait(threads() == before); /* one that was joined may be listed a moment longer */
  }
}

/* --- the alarm is just about to stop its timer when it is told to end */

static _Atomic bool watching, disarming, told, over;

/* In the place of the C library's. The alarm's thread is held where it stops its timer until shutdown has set
 * it for the last time, or a while if that cannot come. */
int timerfd_settime(int fd, int flags, const struct itimerspec *t, struct itimerspec *old) {
  bool stops = t->it_value.tv_sec == 0 && t->it_value.tv_nsec == 0;
  if (stops && tp_load(&watching, acquire)) {
    tp_store(&disarming, true, release);
    uint64_t until = tp_now_ns() + TP_NS_PER_S;
    while (!tp_load(&told, acquire) && tp_now_ns() < until) usleep(100);
  }
  int r = (int)syscall(SYS_timerfd_settime, fd, flags, t, old);
  if (!stops && tp_load(&disarming, acquire)) tp_store(&told, true, release);
  return r;
}

static void nothing(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
}
static void join_nothing(threadpool_worker *w, void *arg) {
  (void)arg;
  test_must(threadpool_join(w, nothing, NULL, nothing, NULL) == 0);
}

static void *shut_down(void *pool) {
  test_must(threadpool_shutdown(pool) == 0);
  tp_store(&over, true, release);
  return NULL;
}

/* If what it is told is overwritten, it sleeps for ever, and shutdown waits for it. */
static void an_alarm_that_stops_its_timer_still_ends(void **state) {
  (void)state;
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2});
  uint64_t until = tp_now_ns() + TP_NS_PER_S;
  tp_store(&watching, true, release);
  /* Forks that leave a wake to the alarm, then none: it has no more to do. */
  while (!test_stats(pool).wakes_deferred && tp_now_ns() < until) {
    test_wait(test_all_parked(pool));
    assert_int_equal(threadpool_call(pool, join_nothing, NULL), 0);
  }
  while (!tp_load(&disarming, acquire) && tp_now_ns() < until) usleep(100);
  pthread_t t;
  assert_int_equal(pthread_create(&t, NULL, shut_down, pool), 0);
  test_wait(tp_load(&over, acquire));
  pthread_join(t, NULL);
  tp_store(&watching, false, release);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_shutdown_leaves_nothing_behind),
      cmocka_unit_test(an_alarm_that_stops_its_timer_still_ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
