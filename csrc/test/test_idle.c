/* test_idle.c - a pool without work costs nothing: its threads are not scheduled at all.
 *
 * A timer, a poll, a late wake would be seen as a context switch of some thread: a thread that is blocked
 * gets none. */
#include "test/help.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>

#include "threadpool_fork.h"

/* --- the threads of the pool, from /proc */

typedef struct {
  int threads;
  bool asleep;       /* all of them */
  uint64_t switches; /* voluntary or not, of all of them */
} scheduled;

/* Adds the thread up. Without those that bear the program's name: the main thread, and the one that
 * ThreadSanitizer has for itself. */
static void add_thread(scheduled *s, const char *tid, const char *program) {
  char path[300], line[256];
  snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
  FILE *f = fopen(path, "re");
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) {
    char text[64] = "";
    unsigned long long n;
    if (sscanf(line, "Name: %63s", text) == 1) {
      if (strcmp(text, program) == 0) break;
      s->threads++;
    } else if (sscanf(line, "State: %63s", text) == 1) {
      s->asleep = s->asleep && text[0] == 'S';
    } else if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1 ||
               sscanf(line, "nonvoluntary_ctxt_switches: %llu", &n) == 1) {
      s->switches += n;
    }
  }
  fclose(f);
}

static scheduled look(void) {
  scheduled s = {.asleep = true};
  char program[64] = "";
  FILE *f = fopen("/proc/self/comm", "re");
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%63s", program), 1);
  fclose(f);
  DIR *d = opendir("/proc/self/task");
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));)
    if (isdigit((unsigned char)e->d_name[0])) add_thread(&s, e->d_name, program);
  closedir(d);
  return s;
}

static void rest(unsigned ms) {
  struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
  while (nanosleep(&t, &t) != 0) {
  }
}

/* A worker counts as parked just before it blocks, and a wake that was put off may come in vain: so until
 * nothing has moved for a while, which is much longer than any of that takes. */
static bool settled(threadpool_t *pool) {
  if (!test_all_parked(pool)) return false;
  scheduled before = look();
  rest(100);
  scheduled after = look();
  return before.asleep && after.asleep && before.switches == after.switches &&
         test_all_parked(pool);
}

/* --- work of all kinds, before the rest */

static tp_poll yield_some(tp_task *t, void *arg) {
  (void)t;
  return tp_add((_Atomic int *)arg, 1, release) % 4 ? TP_YIELD : TP_READY;
}
static void fork_tree(threadpool_worker *w, void *arg) {
  int depth = (int)(intptr_t)arg;
  void *less = (void *)(intptr_t)(depth - 1);
  if (depth > 0) test_must(threadpool_join(w, fork_tree, less, fork_tree, less) == 0);
}
static void nothing(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
}

static void work(threadpool_t *pool) {
  _Atomic int polls = 0;
  for (int i = 0; i < 1000; i++)
    assert_int_equal(test_end_of(test_spawn(pool, yield_some, (void *)&polls)), 0);
  for (int i = 0; i < 10; i++)
    assert_int_equal(threadpool_call(pool, fork_tree, (void *)(intptr_t)10), 0);
  assert_int_equal(threadpool_broadcast(pool, nothing, NULL), 0);
}

static uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * TP_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void an_idle_pool_is_not_scheduled(void **state) {
  (void)state;
  const struct {
    int workers;
    unsigned ms;
  } pools[] = {{2, 2000}, {64, 500}, {65, 500}, {200, 500}};
  for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
    threadpool_t *pool = test_pool((threadpool_options){.workers = pools[i].workers});
    work(pool);
    test_wait(settled(pool));
    scheduled before = look();
    uint64_t cpu = cpu_ns();
    rest(getenv("TP_QUICK") ? 500 : pools[i].ms);
    cpu = cpu_ns() - cpu;
    scheduled after = look();
    assert_true(before.threads >= pools[i].workers);
    assert_int_equal(after.threads, before.threads);
    assert_int_equal(after.switches, before.switches);
    assert_true(cpu < 20 * TP_NS_PER_MS); /* loose: ThreadSanitizer's thread is in it */
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_idle_pool_is_not_scheduled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
