/* test_reactor.c - timers, descriptors and calls on the reactor's thread (io/reactor.h).
 *
 * What would be seen if it were wrong is said at each test. A wake-up that is lost is seen as a test
 * that does not end (the runner kills it). Nothing here depends on how fast the machine is: what has
 * to happen is awaited without limit, and only "not before" is asserted of time.
 *
 * cmocka's assertions leave by longjmp, so only the main thread makes them; others count in `wrong`.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/rng.h"
#include "io/reactor.h"

#define HOUR (3600 * TP_NS_PER_S)

enum { THREADS = 4 };

static _Atomic long wrong; /* seen by a thread that may not assert */

/* --- help ------------------------------------------------------------------------------------- */

static long times(long normal) {
  if (getenv("TP_QUICK")) return normal / 20 + 1;
  return getenv("TP_STRESS") ? normal * 30 : normal;
}

static void rest(void) {
  nanosleep(&(struct timespec){0, 20000}, NULL);
}

#define until(condition)                                                                           \
  while (!(condition)) rest()

/* Let some microseconds pass without the kernel. */
static void spin(uint32_t rounds) {
  while (rounds--) tp_pause();
}

static int entries(const char *path) {
  DIR *d = opendir(path);
  int n = -1; /* the descriptor of opendir itself; "." and ".." are there before and after */
  if (!d) abort();
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

static int threads_now(void) {
  return entries("/proc/self/task");
}

static int descriptors_now(void) {
  return entries("/proc/self/fd");
}

static int setup(void **state) {
  tp_store(&wrong, 0, relaxed);
  *state = tp_reactor_new();
  return *state ? 0 : -1;
}

static int teardown(void **state) {
  tp_reactor_free(*state);
  return 0;
}

/* A call that holds up the reactor's thread, so that a test can prepare what it finds afterwards. */
typedef struct gate {
  tp_reactor_call call;
  _Atomic int entered, open, done;
} gate;

static void gate_run(tp_reactor_call *c) {
  gate *g = (gate *)c;
  tp_store(&g->entered, 1, release);
  until(tp_load(&g->open, acquire));
  tp_store(&g->done, 1, release);
}

static int done(gate *g) {
  return tp_load(&g->done, acquire);
}

static void gate_close(tp_reactor *r, gate *g) {
  *g = (gate){.call.run = gate_run};
  assert_int_equal(tp_reactor_post(r, &g->call), 0);
  until(tp_load(&g->entered, acquire));
}

static void gate_open(gate *g) {
  tp_store(&g->open, 1, release);
  until(done(g));
}

/* Three turns of the thread: what was ready when this was called has been called, unless it is more
 * than fits into the events of two turns. */
static void round_trip(tp_reactor *r) {
  for (int i = 0; i < 3; i++) {
    gate g;
    gate_close(r, &g);
    gate_open(&g);
  }
}

/* A timer that counts. */
typedef struct alarm_timer {
  tp_timer timer;
  _Atomic long fired;
  uint64_t deadline;
} alarm_timer;

static void alarm_fire(tp_timer *t) {
  alarm_timer *a = (alarm_timer *)t;
  if (tp_now_ns() < a->deadline) tp_add(&wrong, 1, relaxed);
  tp_add(&a->fired, 1, release);
}

static int alarm_start(tp_reactor *r, alarm_timer *a, uint64_t deadline) {
  a->deadline = deadline;
  return tp_timer_start(r, &a->timer, deadline, alarm_fire);
}

/* A watch that counts. */
typedef struct look {
  tp_watch watch;
  _Atomic long seen;
  _Atomic uint32_t events; /* of the last time */
} look;

static void look_ready(tp_watch *w, uint32_t events) {
  look *l = (look *)w;
  tp_store(&l->events, events, relaxed);
  tp_add(&l->seen, 1, release);
}

static long seen(look *l) {
  return tp_load(&l->seen, acquire);
}

static int ready_descriptor(void) {
  int fd = eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC);
  assert_true(fd >= 0);
  return fd;
}

/* --- beginning and end ------------------------------------------------------------------------ */

/* Wrong: a thread or a descriptor before they are needed, or one left behind. */
static void starts_nothing_before_its_first_use(void **state) {
  (void)state;
  int threads = threads_now(), fd = ready_descriptor(), descriptors = descriptors_now();
  for (int use = 0; use < 3; use++) {
    tp_reactor *r = tp_reactor_new();
    tp_timer never = {0};
    tp_watch w = {0};
    assert_false(tp_timer_stop(r, &never));
    assert_false(tp_reactor_unwatch(r, &w));
    assert_int_equal(tp_reactor_rewatch(r, &w, EPOLLIN), ERR_INVALID_ARGUMENT);
    assert_int_equal(tp_reactor_watch(r, &w, -1, EPOLLIN, look_ready), ERR_INVALID_ARGUMENT);
    assert_false(tp_reactor_inside(r));
    assert_int_equal(threads_now(), threads);
    assert_int_equal(descriptors_now(), descriptors);

    alarm_timer a = {0};
    look l = {0};
    gate g = {.call.run = gate_run, .open = 1};
    int error = use == 0   ? alarm_start(r, &a, 0)
                : use == 1 ? tp_reactor_watch(r, &l.watch, fd, EPOLLIN | EPOLLONESHOT, look_ready)
                           : tp_reactor_post(r, &g.call);
    assert_int_equal(error, 0);
    assert_int_equal(threads_now(), threads + 1);
    assert_int_equal(descriptors_now(), descriptors + 2);
    until(tp_load(&a.fired, acquire) + seen(&l) + done(&g) == 1);
    tp_reactor_free(r);
    until(threads_now() == threads); /* joined, and a moment later gone from /proc */
    assert_int_equal(descriptors_now(), descriptors);
  }
  tp_reactor *unused = tp_reactor_new();
  tp_reactor_free(unused);
  tp_reactor_free(NULL);
  close(fd);
}

static void leaves_nothing_behind_after_many_lives(void **state) {
  (void)state;
  int threads = threads_now(), fd = ready_descriptor(), descriptors = descriptors_now();
  tp_rng rng;
  tp_rng_seed(&rng, 1);
  for (long i = times(1000); i > 0; i--) {
    tp_reactor *r = tp_reactor_new();
    alarm_timer soon = {0}, late = {0};
    look l = {0};
    gate g = {.call.run = gate_run, .open = 1};
    assert_int_equal(alarm_start(r, &soon, 0), 0);
    assert_int_equal(alarm_start(r, &late, tp_now_ns() + HOUR), 0);
    assert_int_equal(tp_reactor_watch(r, &l.watch, fd, EPOLLIN, look_ready), 0);
    assert_int_equal(tp_reactor_post(r, &g.call), 0);
    spin(tp_rng_below(&rng, 2000)); /* so that the end meets it in all states */
    if (i % 2) tp_reactor_stop(r);
    tp_reactor_free(r);
    assert_true(done(&g));    /* accepted, so run */
    assert_false(late.fired); /* pending, so forgotten */
    assert_true(soon.fired <= 1);
  }
  until(threads_now() == threads);
  assert_int_equal(descriptors_now(), descriptors);
  close(fd);
}

static void refuses_everything_after_the_stop(void **state) {
  for (int used = 0; used < 2; used++) {
    tp_reactor *r = used ? *state : tp_reactor_new();
    alarm_timer pending = {0}, a = {0};
    look l = {0}, other = {0};
    gate g = {.call.run = gate_run};
    int fd = ready_descriptor(), fd2 = ready_descriptor();
    if (used) {
      assert_int_equal(alarm_start(r, &pending, tp_now_ns() + HOUR), 0);
      assert_int_equal(tp_reactor_watch(r, &other.watch, fd2, EPOLLIN, look_ready), 0);
    }
    tp_reactor_stop(r);
    tp_reactor_stop(r);
    long before = seen(&other);
    assert_int_equal(alarm_start(r, &a, 0), ERR_SHUTDOWN);
    assert_int_equal(tp_reactor_watch(r, &l.watch, fd, EPOLLIN, look_ready), ERR_SHUTDOWN);
    assert_int_equal(tp_reactor_post(r, &g.call), ERR_SHUTDOWN);
    if (used) {
      assert_int_equal(tp_reactor_rewatch(r, &other.watch, EPOLLIN), ERR_SHUTDOWN);
      assert_int_equal(alarm_start(r, &pending, 0), ERR_SHUTDOWN);
    }
    assert_false(tp_timer_stop(r, &a.timer));
    assert_int_equal(tp_timer_stop(r, &pending.timer), used);
    assert_false(tp_timer_stop(r, &pending.timer));
    assert_int_equal(tp_reactor_unwatch(r, &other.watch), used);
    assert_false(tp_reactor_inside(r));
    assert_false(a.fired || pending.fired || l.seen || g.entered);
    assert_int_equal(seen(&other), before);
    close(fd);
    close(fd2);
    if (!used) tp_reactor_free(r);
  }
}

static void *stop_main(void *reactor) {
  tp_reactor_stop(reactor);
  return NULL;
}

/* Everything is ready when the stop comes. Wrong: something else than the calls is called. */
static void a_stop_runs_the_calls_and_nothing_else(void **state) {
  tp_reactor *r = *state;
  alarm_timer due[3] = {0}, probe = {0};
  look l = {0};
  gate g, accepted[3];
  int fd = ready_descriptor(), errors = 0;
  gate_close(r, &g);
  for (int i = 0; i < 3; i++) {
    accepted[i] = (gate){.call.run = gate_run, .open = 1};
    errors |= tp_reactor_post(r, &accepted[i].call) | alarm_start(r, &due[i], 0);
  }
  errors |= tp_reactor_watch(r, &l.watch, fd, EPOLLIN, look_ready);
  pthread_t thread;
  errors |= pthread_create(&thread, NULL, stop_main, r);
  until(alarm_start(r, &probe, tp_now_ns() + HOUR) == ERR_SHUTDOWN);
  gate_open(&g);
  pthread_join(thread, NULL);
  assert_int_equal(errors, 0);
  for (int i = 0; i < 3; i++) {
    assert_true(done(&accepted[i]));
    assert_int_equal(due[i].fired, 0);
    assert_true(tp_timer_stop(r, &due[i].timer));
  }
  assert_int_equal(seen(&l), 0);
  assert_true(tp_reactor_unwatch(r, &l.watch));
  close(fd);
}

/* Attempts that can fail, in the order in which a use makes them. Wrong: another error, a leak (also
 * of memory, under AddressSanitizer), or a reactor that a failure has spoilt. */
static void survives_every_failure(void **state) {
  (void)state;
  int threads = threads_now(), fd = ready_descriptor(), descriptors = descriptors_now();
  for (int use = 0; use < 3; use++) {
    long attempt = 1;
    for (bool failed = true; failed; attempt++) {
      alarm_timer a = {0};
      look l = {0};
      gate g = {.call.run = gate_run, .open = 1};
      tp_fail_at(attempt);
      tp_reactor *r = tp_reactor_new();
      assert_int_equal(r == NULL, attempt == 1);
      if (!r) r = tp_reactor_new();
      /* Twice each: when the first time fails the second one, in the same reactor, does not. */
      int error = 0, again = 0;
      if (use == 0) {
        error = alarm_start(r, &a, 0);
        again = error ? alarm_start(r, &a, 0) : 0;
      } else if (use == 1) {
        error = tp_reactor_watch(r, &l.watch, fd, EPOLLIN | EPOLLONESHOT, look_ready);
        again = error ? tp_reactor_watch(r, &l.watch, fd, EPOLLIN | EPOLLONESHOT, look_ready) : 0;
        if (!error) {
          until(seen(&l) == 1);
          error = tp_reactor_rewatch(r, &l.watch, EPOLLIN | EPOLLONESHOT);
          if (error) assert_int_equal(seen(&l), 1); /* as it was: not armed */
          again = error ? tp_reactor_rewatch(r, &l.watch, EPOLLIN | EPOLLONESHOT) : 0;
          until(seen(&l) == 2);
        }
      } else {
        error = tp_reactor_post(r, &g.call);
        again = error ? tp_reactor_post(r, &g.call) : 0;
      }
      failed = tp_fail_left() == 0;
      tp_fail_at(0);
      bool io = attempt >= 2 && attempt <= 4; /* epoll, eventfd, the one into the other */
      assert_int_equal(error, attempt == 1 || !failed ? 0 : io ? ERR_IO : ERR_MALLOC_FAILED);
      assert_int_equal(again, 0);
      until(tp_load(&a.fired, acquire) + (seen(&l) > 0) + done(&g) == 1);
      tp_reactor_free(r);
      until(threads_now() == threads);
      assert_int_equal(descriptors_now(), descriptors);
    }
    /* new, three descriptors, thread; a watch also the table, the watching and the change of it */
    assert_int_equal(attempt - 2, use == 1 ? 8 : 5);
  }
  close(fd);
}

typedef struct self {
  tp_reactor_call call;
  tp_reactor *reactor;
  sigset_t blocked;
  char name[16];
  bool inside;
  _Atomic int done;
} self;

static void self_run(tp_reactor_call *c) {
  self *s = (self *)c;
  s->inside = tp_reactor_inside(s->reactor);
  pthread_sigmask(SIG_BLOCK, NULL, &s->blocked);
  pthread_getname_np(pthread_self(), s->name, sizeof s->name);
  tp_store(&s->done, 1, release);
}

/* Wrong: the host's signal handlers run on a thread of ours. */
static void its_thread_has_a_name_and_takes_no_signals(void **state) {
  self s = {.call.run = self_run, .reactor = *state};
  assert_int_equal(tp_reactor_post(*state, &s.call), 0);
  until(tp_load(&s.done, acquire));
  assert_string_equal(s.name, "tp-reactor");
  assert_true(s.inside);
  assert_false(tp_reactor_inside(*state));
  int host[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGUSR1, SIGUSR2, SIGPIPE, SIGPROF};
  for (size_t i = 0; i < sizeof host / sizeof *host; i++)
    assert_true(sigismember(&s.blocked, host[i]));
}

static void expect_idle(tp_reactor *r, tp_reactor_stats before) {
  nanosleep(&(struct timespec){0, 50000000}, NULL);
  tp_reactor_stats after = tp_reactor_get_stats(r);
  assert_true(after.asleep);
  assert_int_equal(after.wakes, before.wakes);
  assert_int_equal(after.turns, before.turns);
}

static tp_reactor_stats fall_asleep(tp_reactor *r) {
  round_trip(r);
  until(tp_reactor_get_stats(r).asleep);
  return tp_reactor_get_stats(r);
}

/* Wrong: turns or wakes while there is nothing to do (R9, R3). */
static void sleeps_while_there_is_nothing_to_do(void **state) {
  tp_reactor *r = *state;
  expect_idle(r, fall_asleep(r)); /* no timer at all */

  look l = {0};
  alarm_timer late = {0}, later = {0};
  int fd = eventfd(0, EFD_CLOEXEC);
  assert_int_equal(tp_reactor_watch(r, &l.watch, fd, EPOLLIN, look_ready), 0);
  assert_int_equal(alarm_start(r, &late, tp_now_ns() + HOUR), 0);
  tp_reactor_stats before = fall_asleep(r);
  assert_int_equal(alarm_start(r, &later, tp_now_ns() + 2 * HOUR), 0);
  assert_true(tp_timer_stop(r, &later.timer));
  assert_true(tp_timer_stop(r, &late.timer));
  assert_int_equal(tp_reactor_rewatch(r, &l.watch, EPOLLIN | EPOLLPRI), 0);
  assert_true(tp_reactor_unwatch(r, &l.watch));
  expect_idle(r, before);
  close(fd);
}

/* Wrong: more writes to the eventfd than sleeps (R2). */
static void wakes_once_for_each_sleep(void **state) {
  tp_reactor *r = *state;
  tp_reactor_stats before = fall_asleep(r);
  alarm_timer soon = {0};
  gate g, more[10];
  gate_close(r, &g); /* asleep, so the first one wakes it, and what comes after it does not */
  int errors = alarm_start(r, &soon, 0);
  for (int i = 0; i < 10; i++) {
    more[i] = (gate){.call.run = gate_run, .open = 1};
    errors |= tp_reactor_post(r, &more[i].call);
  }
  tp_reactor_stats meanwhile = tp_reactor_get_stats(r);
  gate_open(&g);
  until(tp_load(&soon.fired, acquire) && done(&more[9]));
  until(tp_reactor_get_stats(r).asleep);
  assert_int_equal(errors, 0);
  assert_false(meanwhile.asleep);
  assert_int_equal(meanwhile.turns, before.turns + 1);
  assert_int_equal(meanwhile.wakes, before.wakes + 1);
  assert_int_equal(tp_reactor_get_stats(r).wakes, before.wakes + 1);
}

/* --- timers ----------------------------------------------------------------------------------- */

static void timers_never_fire_early(void **state) {
  tp_reactor *r = *state;
  enum { N = 300 };
  alarm_timer *a = calloc(N, sizeof *a);
  tp_rng rng;
  tp_rng_seed(&rng, 2);
  for (long round = times(20); round > 0; round--) {
    for (int i = 0; i < N; i++) {
      uint64_t now = tp_now_ns();
      a[i].fired = 0;
      assert_int_equal(alarm_start(r, &a[i], now + tp_rng_below(&rng, 20 * TP_NS_PER_MS)), 0);
    }
    for (int i = 0; i < N; i++) until(tp_load(&a[i].fired, acquire));
  }
  assert_int_equal(wrong, 0);
  free(a);
}

typedef struct sequence {
  alarm_timer alarm; /* first */
  _Atomic int *next;
  int place;
} sequence;

static void sequence_fire(tp_timer *t) {
  sequence *s = (sequence *)t;
  s->place = tp_load(s->next, relaxed);
  tp_store(s->next, s->place + 1, release);
}

static void timers_fire_in_the_order_of_their_deadlines(void **state) {
  tp_reactor *r = *state;
  enum { N = 400 };
  sequence *s = calloc(N, sizeof *s);
  _Atomic int next = 0;
  tp_rng rng;
  tp_rng_seed(&rng, 3);
  gate g;
  gate_close(r, &g);
  uint64_t base = tp_now_ns() / TP_NS_PER_MS * TP_NS_PER_MS;
  for (int i = 0; i < N; i++) { /* some have passed; many are equal */
    s[i].next = &next;
    s[i].alarm.deadline = base + TP_NS_PER_MS * tp_rng_below(&rng, 60) - 20 * TP_NS_PER_MS;
    assert_int_equal(tp_timer_start(r, &s[i].alarm.timer, s[i].alarm.deadline, sequence_fire), 0);
  }
  gate_open(&g);
  until(tp_load(&next, acquire) == N);
  for (int i = 0; i < N; i++) {
    for (int j = 0; j < i; j++) /* j was started before i */
      assert_int_equal(s[j].place < s[i].place, s[j].alarm.deadline <= s[i].alarm.deadline);
  }
  free(s);
}

/* Wrong: it does not end, because the thread sleeps on until the later deadline (R3). */
static void an_earlier_deadline_shortens_the_sleep(void **state) {
  tp_reactor *r = *state;
  alarm_timer late = {0}, early = {0};
  assert_int_equal(alarm_start(r, &late, tp_now_ns() + 2 * HOUR), 0);
  for (long i = times(2000); i > 0; i--) {
    if (i % 2) until(tp_reactor_get_stats(r).asleep);
    early.fired = 0;
    assert_int_equal(alarm_start(r, &early, i % 16 ? 0 : tp_now_ns() + TP_NS_PER_MS), 0);
    until(tp_load(&early.fired, acquire));
  }
  until(tp_reactor_get_stats(r).asleep);
  assert_int_equal(alarm_start(r, &late, tp_now_ns() + HOUR), 0); /* moved */
  assert_int_equal(alarm_start(r, &late, tp_now_ns()), 0);
  until(tp_load(&late.fired, acquire));
  assert_false(tp_timer_stop(r, &late.timer));
  assert_int_equal(late.fired, 1);
}

/* Four timers due at once; the first one's callback has its way with the others. */
typedef struct four {
  tp_timer first;
  tp_reactor *reactor;
  alarm_timer stopped, moved, again;
  bool was_pending, itself;
} four;

static void four_fire(tp_timer *t) {
  four *f = (four *)t;
  f->was_pending = tp_timer_stop(f->reactor, &f->stopped.timer);
  f->itself = tp_timer_stop(f->reactor, t);
  alarm_start(f->reactor, &f->moved, tp_now_ns() + HOUR);
  alarm_start(f->reactor, &f->again, 0);
}

static void a_callback_may_stop_and_move_timers_that_are_due_with_it(void **state) {
  tp_reactor *r = *state;
  four f = {.reactor = r};
  gate g;
  gate_close(r, &g);
  assert_int_equal(tp_timer_start(r, &f.first, 0, four_fire), 0);
  assert_int_equal(alarm_start(r, &f.stopped, 0), 0);
  assert_int_equal(alarm_start(r, &f.moved, 0), 0);
  assert_int_equal(alarm_start(r, &f.again, 0), 0);
  gate_open(&g);
  until(tp_load(&f.again.fired, acquire));
  round_trip(r);
  assert_true(f.was_pending);
  assert_false(f.itself);
  assert_int_equal(f.stopped.fired, 0);
  assert_int_equal(f.moved.fired, 0);
  assert_int_equal(f.again.fired, 1);
  assert_true(tp_timer_stop(r, &f.moved.timer));
  assert_int_equal(wrong, 0);
}

static void free_fire(tp_timer *t) {
  alarm_timer *a = (alarm_timer *)t;
  _Atomic long *count = (_Atomic long *)(uintptr_t)a->deadline;
  free(a);
  tp_add(count, 1, release);
}

/* Wrong: AddressSanitizer or valgrind sees the reactor touch it (R4). */
static void a_callback_may_free_its_timer(void **state) {
  _Atomic long count = 0;
  long n = times(2000);
  for (long i = 0; i < n; i++) {
    alarm_timer *a = calloc(1, sizeof *a);
    a->deadline = (uintptr_t)&count;
    assert_int_equal(tp_timer_start(*state, &a->timer, 0, free_fire), 0);
  }
  until(tp_load(&count, acquire) == n);
}

/* One that starts itself again and again, and tells when its callback runs. */
typedef struct ticker {
  tp_timer timer;
  tp_reactor *reactor;
  _Atomic long running, fired;
} ticker;

static void ticker_fire(tp_timer *t) {
  ticker *k = (ticker *)t;
  tp_store(&k->running, 1, relaxed);
  tp_add(&k->fired, 1, relaxed);
  spin(200);
  if (tp_timer_start(k->reactor, t, 0, ticker_fire) != 0) tp_add(&wrong, 1, relaxed);
  spin(200);
  tp_store(&k->running, 0, release);
}

/* Wrong: a callback that runs, or begins, after the stop. */
static void a_stop_ends_a_timer_that_starts_itself_again(void **state) {
  tp_reactor *r = *state;
  static ticker k; /* not on the stack, which is gone when an assertion fails */
  k.reactor = r;
  tp_rng rng;
  tp_rng_seed(&rng, 4);
  for (long i = times(2000); i > 0; i--) {
    long before = tp_load(&k.fired, relaxed);
    assert_int_equal(tp_timer_start(r, &k.timer, 0, ticker_fire), 0);
    until(tp_load(&k.fired, relaxed) > before);
    spin(tp_rng_below(&rng, 1000));
    assert_true(tp_timer_stop(r, &k.timer));
    assert_int_equal(tp_load(&k.running, acquire), 0);
    long after = tp_load(&k.fired, relaxed);
    if (i % 16 == 0) round_trip(r);
    spin(300);
    assert_int_equal(tp_load(&k.fired, relaxed), after);
    assert_false(tp_timer_stop(r, &k.timer));
  }
  assert_int_equal(wrong, 0);
}

/* What hammering threads share. An object's memory is freed as soon as its stop has returned, so the
 * evidence is here: `alive` while a callback of this thread's object may run. */
typedef struct hammer {
  tp_reactor *reactor;
  pthread_t thread;
  uint64_t seed;
  long rounds;
  int fd;
  _Atomic int alive, running;
  _Atomic long called, stopped;
} hammer;

static void hammer_callback(hammer *h) {
  tp_store(&h->running, 1, relaxed);
  if (!tp_load(&h->alive, relaxed)) tp_add(&wrong, 1, relaxed);
  spin(100);
  tp_add(&h->called, 1, relaxed);
  if (!tp_load(&h->alive, relaxed)) tp_add(&wrong, 1, relaxed);
  tp_store(&h->running, 0, release);
}

static void hammer_threads(tp_reactor *r, hammer *h, long rounds, void *(*fn)(void *)) {
  for (int i = 0; i < THREADS; i++) {
    h[i] = (hammer){.reactor = r, .seed = (uint64_t)i, .rounds = rounds, .fd = ready_descriptor()};
    assert_int_equal(pthread_create(&h[i].thread, NULL, fn, &h[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(h[i].thread, NULL);
    close(h[i].fd);
  }
}

typedef struct nail {
  tp_timer timer;
  tp_watch watch;
  hammer *owner;
} nail;

static void nail_fire(tp_timer *t) {
  hammer_callback(((nail *)t)->owner);
}

static void *hammer_timers(void *arg) {
  hammer *h = arg;
  tp_rng rng;
  tp_rng_seed(&rng, h->seed);
  for (long i = h->rounds; i > 0; i--) {
    nail *n = calloc(1, sizeof *n);
    n->owner = h;
    tp_store(&h->alive, 1, relaxed);
    uint64_t deadline = tp_now_ns() + tp_rng_below(&rng, 3) * TP_NS_PER_MS / 2;
    if (tp_timer_start(h->reactor, &n->timer, deadline, nail_fire)) tp_add(&wrong, 1, relaxed);
    if (i % 8)
      spin(tp_rng_below(&rng, 2000));
    else
      nanosleep(&(struct timespec){0, tp_rng_below(&rng, 2 * TP_NS_PER_MS)}, NULL);
    if (tp_timer_stop(h->reactor, &n->timer)) tp_add(&h->stopped, 1, relaxed);
    tp_store(&h->alive, 0, relaxed);
    if (tp_load(&h->running, acquire)) tp_add(&wrong, 1, relaxed);
    free(n);
  }
  return NULL;
}

/* Wrong: a callback that runs when the stop has returned; a timer that both fired and was stopped, or
 * neither (R5). */
static void no_callback_after_a_stop_from_many_threads(void **state) {
  hammer h[THREADS];
  long rounds = times(3000);
  hammer_threads(*state, h, rounds, hammer_timers);
  assert_int_equal(wrong, 0);
  for (int i = 0; i < THREADS; i++) assert_int_equal(h[i].called + h[i].stopped, rounds);
}

/* Many threads stop the same timer. */
typedef struct crowd {
  tp_timer timer;
  tp_reactor *reactor;
  pthread_barrier_t begin, end;
  long rounds;
  _Atomic int running;
  _Atomic long outcomes; /* fired, or stopped */
} crowd;

static void crowd_fire(tp_timer *t) {
  crowd *c = (crowd *)t;
  tp_store(&c->running, 1, relaxed);
  spin(1000);
  tp_add(&c->outcomes, 1, relaxed);
  tp_store(&c->running, 0, release);
}

static void *crowd_main(void *arg) {
  crowd *c = arg;
  for (long i = 0; i < c->rounds; i++) {
    pthread_barrier_wait(&c->begin);
    spin((uint32_t)(i % 700));
    if (tp_timer_stop(c->reactor, &c->timer)) tp_add(&c->outcomes, 1, relaxed);
    if (tp_load(&c->running, acquire)) tp_add(&wrong, 1, relaxed);
    pthread_barrier_wait(&c->end);
  }
  return NULL;
}

static void many_threads_may_stop_one_timer(void **state) {
  crowd c = {.reactor = *state, .rounds = times(3000)};
  pthread_t thread[THREADS];
  pthread_barrier_init(&c.begin, NULL, THREADS + 1);
  pthread_barrier_init(&c.end, NULL, THREADS + 1);
  for (int i = 0; i < THREADS; i++) pthread_create(&thread[i], NULL, crowd_main, &c);
  for (long i = 0; i < c.rounds; i++) {
    if (tp_timer_start(*state, &c.timer, 0, crowd_fire) != 0) tp_add(&wrong, 1, relaxed);
    pthread_barrier_wait(&c.begin);
    pthread_barrier_wait(&c.end);
    if (tp_load(&c.outcomes, relaxed) != i + 1) tp_add(&wrong, 1, relaxed);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
  assert_int_equal(wrong, 0);
  pthread_barrier_destroy(&c.begin);
  pthread_barrier_destroy(&c.end);
}

/* --- descriptors ------------------------------------------------------------------------------ */

static void a_watch_is_called_while_its_descriptor_is_ready(void **state) {
  tp_reactor *r = *state;
  look l = {0};
  int pair[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  assert_int_equal(tp_reactor_watch(r, &l.watch, pair[0], EPOLLIN, look_ready), 0);
  round_trip(r);
  assert_int_equal(seen(&l), 0);
  assert_int_equal(write(pair[1], "x", 1), 1);
  until(seen(&l) >= 3); /* it is not read: again and again */
  assert_int_equal(l.events, EPOLLIN);
  char byte;
  assert_int_equal(read(pair[0], &byte, 1), 1);
  round_trip(r);
  long now = seen(&l);
  round_trip(r);
  assert_int_equal(seen(&l), now);

  assert_int_equal(tp_reactor_rewatch(r, &l.watch, EPOLLOUT), 0);
  until(seen(&l) > now + 2);
  assert_int_equal(l.events, EPOLLOUT);
  assert_int_equal(tp_reactor_rewatch(r, &l.watch, 0), 0);
  round_trip(r);
  now = seen(&l);
  round_trip(r);
  assert_int_equal(seen(&l), now);
  close(pair[1]);
  until(seen(&l) > now);
  assert_int_equal(l.events, EPOLLHUP); /* told unasked */

  assert_true(tp_reactor_unwatch(r, &l.watch));
  now = seen(&l);
  round_trip(r);
  assert_int_equal(seen(&l), now);
  assert_false(tp_reactor_unwatch(r, &l.watch));
  assert_int_equal(tp_reactor_watch(r, &l.watch, pair[0], EPOLLIN, look_ready), 0); /* once more */
  until(seen(&l) > now);
  assert_true(tp_reactor_unwatch(r, &l.watch));
  close(pair[0]);
}

static void a_one_shot_watch_is_called_once_for_each_arming(void **state) {
  tp_reactor *r = *state;
  look l = {0};
  int fd = ready_descriptor();
  assert_int_equal(tp_reactor_watch(r, &l.watch, fd, EPOLLIN | EPOLLONESHOT, look_ready), 0);
  for (long i = 1; i <= times(300); i++) {
    until(seen(&l) == i);
    if (i % 16 == 0) round_trip(r);
    assert_int_equal(seen(&l), i);
    assert_int_equal(tp_reactor_rewatch(r, &l.watch, EPOLLIN | EPOLLONESHOT), 0);
  }
  assert_true(tp_reactor_unwatch(r, &l.watch));
  close(fd);
}

static void a_watch_that_cannot_be_is_refused(void **state) {
  tp_reactor *r = *state;
  look a = {0}, b = {0};
  int fd = eventfd(0, EFD_CLOEXEC), other = eventfd(0, EFD_CLOEXEC);
  int closed = dup(fd);
  FILE *regular = tmpfile();
  close(closed);
  int bad[] = {-1, INT_MIN, closed, INT_MAX, INT_MAX / 2, fileno(regular)};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_int_equal(tp_reactor_watch(r, &a.watch, bad[i], EPOLLIN, look_ready),
                     ERR_INVALID_ARGUMENT);
  assert_int_equal(tp_reactor_watch(r, &a.watch, fd, EPOLLIN | EPOLLET, look_ready),
                   ERR_INVALID_ARGUMENT);
  assert_int_equal(tp_reactor_watch(r, &a.watch, fd, EPOLLIN, look_ready), 0);
  assert_int_equal(tp_reactor_watch(r, &b.watch, fd, EPOLLIN, look_ready), ERR_INVALID_ARGUMENT);
  assert_int_equal(tp_reactor_watch(r, &a.watch, other, EPOLLIN, look_ready), ERR_INVALID_ARGUMENT);
  assert_int_equal(tp_reactor_rewatch(r, &b.watch, EPOLLIN), ERR_INVALID_ARGUMENT);
  assert_int_equal(tp_reactor_rewatch(r, &a.watch, EPOLLET), ERR_INVALID_ARGUMENT);
  assert_false(tp_reactor_unwatch(r, &b.watch));
  assert_int_equal(write(fd, &(uint64_t){1}, 8), 8); /* and none of this has harmed the first */
  until(seen(&a));
  assert_true(tp_reactor_unwatch(r, &a.watch));
  fclose(regular);
  close(fd);
  close(other);
}

static void many_descriptors_are_watched_at_once(void **state) {
  tp_reactor *r = *state;
  enum { N = 300 }; /* the table grows several times, and so do the rounds of epoll_wait */
  look *l = calloc(N, sizeof *l);
  int fd[N];
  for (int i = 0; i < N; i++) {
    fd[i] = eventfd(i % 2, EFD_CLOEXEC);
    uint32_t events = EPOLLIN | EPOLLONESHOT;
    assert_int_equal(tp_reactor_watch(r, &l[i].watch, fd[i], events, look_ready), 0);
  }
  for (int i = 0; i < N; i += 2) assert_int_equal(write(fd[i], &(uint64_t){1}, 8), 8);
  for (int i = 0; i < N; i++) until(seen(&l[i]));
  round_trip(r);
  for (int i = 0; i < N; i++) {
    assert_int_equal(seen(&l[i]), 1);
    assert_true(tp_reactor_unwatch(r, &l[i].watch));
    close(fd[i]);
  }
  free(l);
}

/* Two descriptors become ready together, so that the kernel hands out both events at once; whichever
 * callback comes first does something to the other watch, whose event then is on its way (R7). */
typedef struct twin {
  look look; /* first */
  struct twin *other;
  tp_reactor *reactor;
  int what, fd, idle;
  look fresh;
  _Atomic int done;
} twin;

enum { REPLACE, REARM, CUT };

static void twin_ready(tp_watch *w, uint32_t events) {
  twin *t = (twin *)w, *o = t->other;
  look_ready(w, events);
  if (tp_load(&o->done, relaxed) || tp_load(&t->done, relaxed)) return;
  int error = 0;
  if (t->what == REPLACE) { /* another file of the same number, at which nothing is ready */
    if (!tp_reactor_unwatch(t->reactor, &o->look.watch)) error = 1;
    if (dup2(t->idle, o->fd) < 0) error = 1;
    error |= tp_reactor_watch(t->reactor, &o->fresh.watch, o->fd, EPOLLIN, look_ready);
  } else if (t->what == REARM) {
    error = tp_reactor_rewatch(t->reactor, &o->look.watch, EPOLLIN | EPOLLONESHOT);
  } else {
    error = tp_reactor_rewatch(t->reactor, &o->look.watch, EPOLLPRI);
  }
  if (error) tp_add(&wrong, 1, relaxed);
  tp_store(&t->done, 1, release);
}

/* Which of the two came first. */
static int twins(tp_reactor *r, twin t[2], int what) {
  gate g;
  gate_close(r, &g);
  for (int i = 0; i < 2; i++) {
    t[i] = (twin){.other = &t[!i], .reactor = r, .what = what, .fd = ready_descriptor()};
    t[i].idle = eventfd(0, EFD_CLOEXEC);
    uint32_t events = EPOLLIN | EPOLLONESHOT;
    assert_int_equal(tp_reactor_watch(r, &t[i].look.watch, t[i].fd, events, twin_ready), 0);
  }
  gate_open(&g);
  until(tp_load(&t[0].done, acquire) || tp_load(&t[1].done, acquire));
  round_trip(r);
  int first = tp_load(&t[1].done, acquire);
  assert_int_equal(wrong, 0);
  assert_int_equal(seen(&t[first].look), 1);
  return first;
}

static void twins_end(tp_reactor *r, twin t[2]) {
  for (int i = 0; i < 2; i++) {
    tp_reactor_unwatch(r, &t[i].look.watch);
    tp_reactor_unwatch(r, &t[i].fresh.watch);
    close(t[i].fd);
    close(t[i].idle);
  }
}

/* Wrong: the new watch is called though nothing is ready there. */
static void an_event_on_its_way_does_not_reach_the_next_watch_of_its_descriptor(void **state) {
  for (int i = 0; i < 20; i++) {
    twin t[2];
    int first = twins(*state, t, REPLACE);
    assert_int_equal(seen(&t[!first].look), 0);
    assert_int_equal(seen(&t[!first].fresh), 0);
    assert_int_equal(write(t[first].idle, &(uint64_t){1}, 8), 8); /* and then it is */
    until(seen(&t[!first].fresh));
    twins_end(*state, t);
  }
}

/* Wrong: twice, for the event of the first arming and for that of the second. */
static void an_event_on_its_way_does_not_count_for_the_next_arming(void **state) {
  for (int i = 0; i < 20; i++) {
    twin t[2];
    int first = twins(*state, t, REARM);
    until(seen(&t[!first].look));
    round_trip(*state);
    assert_int_equal(seen(&t[!first].look), 1);
    twins_end(*state, t);
  }
}

/* Wrong: it is told what is not wanted any more. */
static void an_event_on_its_way_comes_to_nothing_when_it_is_not_wanted_any_more(void **state) {
  for (int i = 0; i < 20; i++) {
    twin t[2];
    int first = twins(*state, t, CUT);
    assert_int_equal(seen(&t[!first].look), 0);
    twins_end(*state, t);
  }
}

typedef struct quitter {
  look look; /* first */
  tp_reactor *reactor;
} quitter;

static void quitter_ready(tp_watch *w, uint32_t events) {
  quitter *q = (quitter *)w;
  if (!tp_reactor_unwatch(q->reactor, w)) tp_add(&wrong, 1, relaxed);
  if (tp_reactor_unwatch(q->reactor, w)) tp_add(&wrong, 1, relaxed);
  look_ready(w, events);
}

static void a_callback_may_end_its_own_watch(void **state) {
  quitter q = {.reactor = *state};
  int fd = ready_descriptor();
  for (long i = 1; i <= times(500); i++) {
    assert_int_equal(tp_reactor_watch(*state, &q.look.watch, fd, EPOLLIN, quitter_ready), 0);
    until(seen(&q.look) == i);
    assert_false(tp_reactor_unwatch(*state, &q.look.watch));
  }
  round_trip(*state);
  assert_int_equal(seen(&q.look), times(500));
  assert_int_equal(wrong, 0);
  close(fd);
}

static void nail_ready(tp_watch *w, uint32_t events) {
  if (events != EPOLLIN) tp_add(&wrong, 1, relaxed);
  hammer_callback(((nail *)((char *)w - offsetof(nail, watch)))->owner);
}

static void *hammer_watches(void *arg) {
  hammer *h = arg;
  tp_rng rng;
  tp_rng_seed(&rng, h->seed);
  for (long i = h->rounds; i > 0; i--) {
    nail *n = calloc(1, sizeof *n);
    n->owner = h;
    tp_store(&h->alive, 1, relaxed);
    if (tp_reactor_watch(h->reactor, &n->watch, h->fd, EPOLLIN, nail_ready))
      tp_add(&wrong, 1, relaxed);
    spin(tp_rng_below(&rng, 1000));
    if (i % 2 && tp_reactor_rewatch(h->reactor, &n->watch, EPOLLIN)) tp_add(&wrong, 1, relaxed);
    spin(tp_rng_below(&rng, 1000));
    if (!tp_reactor_unwatch(h->reactor, &n->watch)) tp_add(&wrong, 1, relaxed);
    tp_store(&h->alive, 0, relaxed);
    if (tp_load(&h->running, acquire)) tp_add(&wrong, 1, relaxed);
    free(n);
  }
  return NULL;
}

/* Wrong: a callback that runs when the unwatch has returned. */
static void no_callback_after_an_unwatch_from_many_threads(void **state) {
  hammer h[THREADS];
  long called = 0;
  hammer_threads(*state, h, times(5000), hammer_watches);
  for (int i = 0; i < THREADS; i++) called += h[i].called;
  assert_int_equal(wrong, 0);
  assert_true(called > 0); /* else this has shown nothing */
}

/* --- calls ------------------------------------------------------------------------------------ */

typedef struct numbered {
  tp_reactor_call call;
  struct poster *poster;
  long number;
} numbered;

typedef struct poster {
  tp_reactor *reactor;
  pthread_t thread;
  numbered *calls;
  long count, accepted;
  long ran; /* the reactor's thread's */
  _Atomic int *begun;
} poster;

static void numbered_run(tp_reactor_call *c) {
  numbered *n = (numbered *)c;
  if (n->number != n->poster->ran) tp_add(&wrong, 1, relaxed);
  n->poster->ran++;
}

static void *poster_main(void *arg) {
  poster *p = arg;
  tp_rng rng;
  tp_rng_seed(&rng, (uintptr_t)p);
  for (long i = 0; i < p->count; i++) {
    p->calls[i] = (numbered){{.run = numbered_run}, p, i};
    int error = tp_reactor_post(p->reactor, &p->calls[i].call);
    if (error && error != ERR_SHUTDOWN) tp_add(&wrong, 1, relaxed);
    if (error) break;
    p->accepted++;
    if (i == 10) tp_add(p->begun, 1, release);
    if (i % 4 == 0) spin(tp_rng_below(&rng, 500)); /* so that it falls asleep now and then */
  }
  return NULL;
}

/* Posts of THREADS threads, all of them or until a stop comes. */
static void posters(tp_reactor *r, long count, bool stop) {
  poster p[THREADS];
  _Atomic int begun = 0;
  for (int i = 0; i < THREADS; i++) {
    p[i] = (poster){.reactor = r, .count = count, .begun = &begun};
    p[i].calls = calloc((size_t)count, sizeof *p[i].calls);
    assert_int_equal(pthread_create(&p[i].thread, NULL, poster_main, &p[i]), 0);
  }
  if (stop) {
    until(tp_load(&begun, acquire) == THREADS);
    tp_reactor_stop(r);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(p[i].thread, NULL);
  if (!stop) round_trip(r); /* behind all others, and orders what follows after them */
  assert_int_equal(wrong, 0);
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(p[i].ran, p[i].accepted);
    if (!stop) assert_int_equal(p[i].ran, count);
    free(p[i].calls);
  }
}

/* Wrong: one lost, run twice, or overtaken by a later one of the same thread (R8). */
static void calls_of_many_threads_run_once_and_in_order(void **state) {
  posters(*state, times(20000), false);
}

/* Wrong: a call was accepted and not run, or run though it was refused. */
static void a_stop_runs_what_was_accepted_and_refuses_the_rest(void **state) {
  (void)state;
  for (long i = times(100); i > 0; i--) {
    tp_reactor *r = tp_reactor_new();
    posters(r, 20000, true);
    tp_reactor_free(r);
  }
}

/* Wrong: it does not end, because a post and the sleep have missed each other (R2). */
static void a_post_always_wakes_the_thread(void **state) {
  tp_reactor *r = *state;
  tp_rng rng;
  tp_rng_seed(&rng, 5);
  for (long i = times(20000); i > 0; i--) {
    gate g = {.call.run = gate_run, .open = 1};
    assert_int_equal(tp_reactor_post(r, &g.call), 0);
    while (!done(&g)) spin(20);
    spin(tp_rng_below(&rng, 200)); /* so that the next one comes while it falls asleep */
  }
}

typedef struct again {
  tp_reactor_call call;
  tp_reactor *reactor;
  _Atomic long ran;
  _Atomic int enough;
} again;

static void again_run(tp_reactor_call *c) {
  again *a = (again *)c;
  tp_add(&a->ran, 1, release);
  if (!tp_load(&a->enough, acquire) && tp_reactor_post(a->reactor, c)) tp_add(&wrong, 1, relaxed);
}

/* Wrong: it does not end, because a call runs again and again in one turn, or because the one behind
 * it in the batch was lost when it posted itself. */
static void calls_that_post_themselves_starve_nobody(void **state) {
  tp_reactor *r = *state;
  again a[2] = {{.call.run = again_run, .reactor = r}, {.call.run = again_run, .reactor = r}};
  alarm_timer t = {0};
  look l = {0};
  int fd = ready_descriptor();
  gate g;
  gate_close(r, &g);
  int errors = tp_reactor_post(r, &a[0].call) | tp_reactor_post(r, &a[1].call);
  gate_open(&g);
  assert_int_equal(errors, 0);
  assert_int_equal(alarm_start(r, &t, tp_now_ns() + TP_NS_PER_MS), 0);
  assert_int_equal(tp_reactor_watch(r, &l.watch, fd, EPOLLIN, look_ready), 0);
  until(tp_load(&t.fired, acquire) && seen(&l) > 10);
  for (int i = 0; i < 2; i++) {
    until(tp_load(&a[i].ran, acquire) > 10);
    tp_store(&a[i].enough, 1, release);
  }
  assert_true(tp_reactor_unwatch(r, &l.watch));
  round_trip(r);
  assert_int_equal(wrong, 0);
  close(fd);
}

static void *tell_path(void *path) {
  snprintf(path, 64, "/proc/self/task/%d", (int)gettid());
  return NULL;
}

/* ThreadSanitizer starts a thread of its own with the first one: let that be before any are counted.
 * A thread that was joined is gone from /proc a moment later. */
static int first_thread(void **state) {
  (void)state;
  pthread_t thread;
  char path[64];
  if (pthread_create(&thread, NULL, tell_path, path) != 0) return -1;
  pthread_join(thread, NULL);
  until(access(path, F_OK) != 0);
  return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(starts_nothing_before_its_first_use),
      TEST(leaves_nothing_behind_after_many_lives),
      TEST(refuses_everything_after_the_stop),
      TEST(a_stop_runs_the_calls_and_nothing_else),
      TEST(survives_every_failure),
      TEST(its_thread_has_a_name_and_takes_no_signals),
      TEST(sleeps_while_there_is_nothing_to_do),
      TEST(wakes_once_for_each_sleep),
      TEST(timers_never_fire_early),
      TEST(timers_fire_in_the_order_of_their_deadlines),
      TEST(an_earlier_deadline_shortens_the_sleep),
      TEST(a_callback_may_stop_and_move_timers_that_are_due_with_it),
      TEST(a_callback_may_free_its_timer),
      TEST(a_stop_ends_a_timer_that_starts_itself_again),
      TEST(no_callback_after_a_stop_from_many_threads),
      TEST(many_threads_may_stop_one_timer),
      TEST(a_watch_is_called_while_its_descriptor_is_ready),
      TEST(a_one_shot_watch_is_called_once_for_each_arming),
      TEST(a_watch_that_cannot_be_is_refused),
      TEST(many_descriptors_are_watched_at_once),
      TEST(an_event_on_its_way_does_not_reach_the_next_watch_of_its_descriptor),
      TEST(an_event_on_its_way_does_not_count_for_the_next_arming),
      TEST(an_event_on_its_way_comes_to_nothing_when_it_is_not_wanted_any_more),
      TEST(a_callback_may_end_its_own_watch),
      TEST(no_callback_after_an_unwatch_from_many_threads),
      TEST(calls_of_many_threads_run_once_and_in_order),
      TEST(a_stop_runs_what_was_accepted_and_refuses_the_rest),
      TEST(a_post_always_wakes_the_thread),
      TEST(calls_that_post_themselves_starve_nobody),
  };
  return cmocka_run_group_tests_name("reactor", tests, first_thread, NULL);
}
