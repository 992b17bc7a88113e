/* Handlers that crash: the process lives, the pool works on, nothing is lost; and what is not ours still kills. */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/critical.h"
#include "help.h"
#include "pool/crash.h"
#include "sched/guard.h"
#include "threadpool_fork.h"

/* The sanitizers would report these instead of letting them happen. */
#define BROKEN __attribute__((noinline, no_sanitize("undefined", "address", "thread")))

static threadpool_t *pool;
static _Atomic int begun, ended, crashes;
static _Atomic bool go, over;

/* --- ways to crash */

static void *volatile nowhere;
static volatile int zero;

BROKEN static void write_null(void *arg) {
  (void)arg;
  *(volatile int *)nowhere = 1;
}
BROKEN static void divide(void *arg) {
  (void)arg;
#if defined(__x86_64__) || defined(__i386__)
  volatile int some = 100; /* 1 / x is no division to the compiler */
  zero = some / zero;
#else
  zero = 0; /* does not trap here */
#endif
}
BROKEN static void illegal(void *arg) {
  (void)arg;
#if defined(__x86_64__) || defined(__i386__)
  __asm__ volatile("ud2");
#elif defined(__aarch64__)
  __asm__ volatile("udf #0");
#else
  __builtin_trap();
#endif
}
static char *truncated; /* a page of a file that has none any more */
BROKEN static void read_truncated(void *arg) {
  (void)arg;
  (void)*(volatile char *)truncated;
}
BROKEN static int overflow_from(int depth) {
  volatile char room[1024];
  room[0] = (char)depth;
  return depth < zero - 1 ? 0 : overflow_from(depth + 1) + room[0]; /* never */
}
static void overflow(void *arg) {
  (void)arg;
  zero = overflow_from(0) * 0;
}
static void *open_truncated(void) {
  char name[] = "/tmp/test_crash_XXXXXX";
  int fd = mkstemp(name);
  test_must(fd >= 0 && unlink(name) == 0 && ftruncate(fd, 4096) == 0);
  void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
  test_must(p != MAP_FAILED && ftruncate(fd, 0) == 0 && close(fd) == 0);
  return p;
}

/* --- help */

typedef struct attempt {
  void (*fn)(void *);
  void *arg;
  int signal; /* 0: it returns */
} attempt;

static tp_poll try_it(tp_task *t, void *arg) {
  (void)t;
  attempt *a = arg;
  tp_crash crash = {0};
  bool returned = tp_guard_run(a->fn, a->arg, &crash);
  test_must(returned == (a->signal == 0));
  test_must(crash.signal == a->signal);
  test_must(returned || threadpool_current() == NULL);
  test_must(tp_guard == NULL && tp_critical == 0);
  if (!returned) tp_add(&crashes, 1, relaxed);
  return TP_READY;
}
static tp_task *spawn(threadpool_t *in, tp_poll_fn poll, void *arg, bool blocking) {
  tp_task *t = NULL;
  tp_spawn_spec spec = {.poll = poll, .arg = arg, .priority = TP_NORMAL, .blocking = blocking};
  test_must(tp_spawn(in->tasks, &spec, &t) == 0);
  return t;
}
static void try_and_wait(attempt a) {
  tp_task *t = spawn(pool, try_it, &a, false);
  test_must(tp_task_wait(t, 0) == 0);
  tp_task_unref(t);
}
static void reset(void) {
  tp_store(&begun, 0, relaxed);
  tp_store(&ended, 0, relaxed);
  tp_store(&crashes, 0, relaxed);
  tp_store(&go, false, relaxed);
  tp_store(&over, false, relaxed);
}
static void begin(int workers) {
  reset();
  pool = test_pool((threadpool_options){.workers = workers, .blocking = 8});
}
static int threads(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/task");
  test_must(d != NULL);
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}
static long tree(threadpool_worker *w, int n);
typedef struct node {
  int n;
  long result;
} node;
static void run_tree(threadpool_worker *w, void *arg) {
  node *d = arg;
  d->result = tree(w, d->n);
}
static long tree(threadpool_worker *w, int n) {
  if (n < 2) return n;
  node b = {n - 2, 0};
  threadpool_job job;
  threadpool_fork(w, &job, run_tree, &b);
  long a = tree(w, n - 1);
  threadpool_sync(w, &job);
  return a + b.result;
}
static void guarded_tree(void *arg) {
  node *d = arg;
  d->result = tree(threadpool_current(), d->n);
}
/* The pool still works: calls, guarded forks, tasks. */
static void works(threadpool_t *p) {
  node a = {15, 0};
  assert_int_equal(threadpool_call(p, run_tree, &a), 0);
  assert_int_equal(a.result, 610);
  node b = {15, 0};
  attempt ok = {guarded_tree, &b, 0};
  tp_task *t = spawn(p, try_it, &ok, false);
  assert_int_equal(test_end_of(t), 0);
  assert_int_equal(b.result, 610);
}
/* Wrong: a seat keeps something of what has crashed. */
static void is_as_new(threadpool_t *p) {
  for (unsigned i = 0; i <= p->sched->workers; i++) {
    tp_worker *w = &p->sched->seats[i];
    test_wait(tp_load(&w->segments.depth, relaxed) == 0);
    for (int k = 0; k < TP_SEGMENTS_FIRST; k++)
      test_wait(tp_load(&w->segments.first[k].out, relaxed) == 0);
  }
}
static void finish(void) {
  works(pool);
  is_as_new(pool);
  assert_int_equal(threadpool_shutdown(pool), 0);
}
static long often(void) {
#ifdef TEST_SANITIZED
  return test_size(20, 50);
#else
  return test_size(100, 1000);
#endif
}

/* --- each kind */

static void crash_often(attempt a, bool blocking) {
  begin(2);
  works(pool);
  int before = threads();
  long n = often();
  tp_task **t = calloc((size_t)n, sizeof *t);
  for (long i = 0; i < n; i++) t[i] = spawn(pool, try_it, &a, blocking);
  for (long i = 0; i < n; i++) assert_int_equal(test_end_of(t[i]), 0);
  free(t);
  assert_int_equal(crashes, n);
  works(pool);
  test_wait(threads() <= before + (blocking ? 8 : 1)); /* perhaps the alarm */
  finish();
}
static void null_write(void **state) {
  (void)state;
  crash_often((attempt){write_null, NULL, SIGSEGV}, false);
}
static void integer_division(void **state) {
  (void)state;
#if defined(__x86_64__) || defined(__i386__)
  crash_often((attempt){divide, NULL, SIGFPE}, false);
#else
  (void)divide;
  print_message("left out: a division by zero does not trap on this processor\n");
#endif
}
static void illegal_instruction(void **state) {
  (void)state;
  crash_often((attempt){illegal, NULL, SIGILL}, false);
}
static void bus_error(void **state) {
  (void)state;
  truncated = open_truncated();
  crash_often((attempt){read_truncated, NULL, SIGBUS}, false);
  munmap(truncated, 4096);
}
static void stack_overflow(void **state) {
  (void)state;
  crash_often((attempt){overflow, NULL, SIGSEGV}, false);
}
static void blocking_thread(void **state) {
  (void)state;
  crash_often((attempt){write_null, NULL, SIGSEGV}, true);
}

/* A handler of a shared object made here. */
static void shared_object(void **state) {
  (void)state;
  char dir[] = "/tmp/test_crash_XXXXXX", command[512], path[64];
  assert_non_null(mkdtemp(dir));
  const char *cc = getenv("CC");
  snprintf(path, sizeof path, "%s/h.so", dir);
  snprintf(command, sizeof command,
           "cd %s && echo 'void handler(void *p) { *(volatile int *)p = 1; }' >h.c && "
           "%s -shared -fPIC -o h.so h.c >/dev/null 2>&1",
           dir, cc && *cc ? cc : "cc");
  bool made = system(command) == 0;
  void *so = made ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  snprintf(command, sizeof command, "rm -rf %s", dir);
  assert_int_equal(system(command), 0);
  if (!so) {
    print_message("left out: no compiler to build a shared object with ($CC, cc)\n");
    return;
  }
  void (*handler)(void *) = NULL;
  *(void **)&handler = dlsym(so, "handler");
  assert_non_null(handler);
  crash_often((attempt){handler, NULL, SIGSEGV}, false);
  dlclose(so);
}

/* --- forks */

enum { MAGIC = 0x5eed, HELD = 6 };
typedef struct held {
  _Atomic int magic;
} held;
/* Its argument is on the stack of the one that crashes. Wrong: that stack is left, and used again, meanwhile. */
static void hold(threadpool_worker *w, void *arg) {
  (void)w;
  held *h = arg;
  tp_add(&begun, 1, relaxed);
  for (int i = 0; i < 20000; i++) test_must(tp_load(&h->magic, relaxed) == MAGIC);
  tp_store(&h->magic, MAGIC + 1, relaxed);
  tp_add(&ended, 1, relaxed);
}
static void crash_before_the_sync(void *arg) {
  (void)arg;
  threadpool_worker *w = threadpool_current();
  threadpool_job job[HELD];
  held h[HELD];
  for (int i = 0; i < HELD; i++) {
    tp_store(&h[i].magic, MAGIC, relaxed);
    threadpool_fork(w, &job[i], hold, &h[i]);
  }
  test_wait(tp_load(&begun, relaxed) > 0);
  write_null(NULL);
  for (int i = HELD; i-- > 0;) threadpool_sync(w, &job[i]);
}
static tp_poll crash_with_forks(tp_task *t, void *arg) {
  tp_poll outcome = try_it(t, arg);
  /* Wrong: a stolen job is still running, or one that nobody stole was run. */
  test_must(tp_load(&begun, relaxed) == tp_load(&ended, relaxed));
  return outcome;
}
static void stolen_jobs_under_way(void **state) {
  (void)state;
  begin(3);
  attempt a = {crash_before_the_sync, NULL, SIGSEGV};
  for (long i = often(); i > 0; i--) {
    reset();
    assert_int_equal(test_end_of(spawn(pool, crash_with_forks, &a, false)), 0);
    assert_int_equal(begun, ended);
    assert_true(begun >= 1 && begun <= HELD);
  }
  finish();
}

static void crash_as_a_job(threadpool_worker *w, void *arg) {
  (void)w;
  tp_add(&begun, 1, release);
  write_null(arg);
}
static void fork_and_crash_there(void *stolen) {
  threadpool_worker *w = threadpool_current();
  threadpool_job job;
  threadpool_fork(w, &job, crash_as_a_job, NULL);
  if (stolen) test_wait(tp_load(&begun, acquire) > 0);
  threadpool_sync(w, &job);
  test_must(!"reached");
}
static void a_stolen_job(void **state) {
  (void)state;
  begin(2);
  int before = threads();
  for (long i = often(); i > 0; i--) {
    reset();
    try_and_wait((attempt){fork_and_crash_there, i % 2 ? &begun : NULL, SIGSEGV});
    assert_int_equal(begun, 1);
  }
  test_wait(threads() <= before + 1);
  finish();
}

/* A recursion that forks at every level: it overflows in the program's code, in the inline paths, or at the door of the
 * library, at a different place each time. Wrong: it does so inside the library, and the process dies. */
static void short_job(threadpool_worker *w, void *arg) {
  (void)w;
  tp_add((_Atomic int *)arg, 1, relaxed);
}
BROKEN static int fork_without_end(threadpool_worker *w, int size) {
  volatile char *room = __builtin_alloca((size_t)size);
  room[0] = 0;
  threadpool_job job;
  threadpool_fork(w, &job, short_job, (void *)&begun);
  int below = room[0] == 1 ? 0 : fork_without_end(w, size);
  threadpool_sync(w, &job);
  return below + room[0];
}
static void overflow_with_forks(void *size) {
  zero = fork_without_end(threadpool_current(), (int)(intptr_t)size) * 0;
}
static void a_recursion_that_forks(void **state) {
  (void)state;
  begin(2);
  for (long i = 0, n = often() / 5; i < n; i++)
    try_and_wait((attempt){overflow_with_forks, (void *)(intptr_t)(256 + i % 64 * 16), SIGSEGV});
  finish();
}

/* A tree with one leaf that crashes, wherever that is run: number `result` of those below, if there is one. */
enum { NO_LEAF = 1 << 30 };
static void crash_tree(threadpool_worker *w, void *arg) {
  node d = *(node *)arg;
  if (d.n == 0) {
    if (d.result == 0) write_null(NULL);
    return;
  }
  long half = 1L << (d.n - 1);
  bool right = d.result >= half && d.result != NO_LEAF;
  node l = {d.n - 1, d.result < half ? d.result : NO_LEAF};
  node r = {d.n - 1, right ? d.result - half : NO_LEAF};
  threadpool_job job;
  threadpool_fork(w, &job, crash_tree, &r);
  crash_tree(w, &l);
  threadpool_sync(w, &job);
}
static void guarded_crash_tree(void *arg) {
  crash_tree(threadpool_current(), arg);
}
static tp_poll crash_in_a_tree(tp_task *t, void *arg) {
  (void)t;
  tp_crash crash = {0};
  test_must(!tp_guard_run(guarded_crash_tree, arg, &crash));
  test_must(crash.signal == SIGSEGV && crash.address == NULL);
  tp_add(&crashes, 1, relaxed);
  return TP_READY;
}
static void trees_on_many_workers(void **state) {
  (void)state;
  begin(4);
  long n = often();
  node *d = calloc((size_t)n, sizeof *d);
  tp_task **t = calloc((size_t)n, sizeof *t);
  for (long i = 0; i < n; i++) {
    d[i] = (node){10, i * 37 % 1024};
    t[i] = spawn(pool, crash_in_a_tree, &d[i], false);
    if (i % 8 == 7) works(pool); /* calls from outside between them */
  }
  for (long i = 0; i < n; i++) assert_int_equal(test_end_of(t[i]), 0);
  assert_int_equal(crashes, n);
  free(t);
  free(d);
  finish();
}

/* --- scopes */

enum { SPAWNS = 64 };
static void count_or_crash(threadpool_worker *w, void *arg) {
  (void)w;
  test_must(!tp_load(&over, acquire)); /* wrong: it runs though its scope is gone */
  tp_add(&begun, 1, relaxed);
  if (arg) write_null(NULL);
  for (int i = 0; i < 100; i++) tp_pause();
  test_must(!tp_load(&over, acquire));
  tp_add(&ended, 1, relaxed);
}
static void spawn_more(threadpool_worker *w, void *scope) {
  for (int i = 0; i < 8; i++) test_must(threadpool_spawn(w, scope, count_or_crash, NULL) == 0);
}
static void scope_with_a_crash(void *at) {
  threadpool_worker *w = threadpool_current();
  threadpool_scope scope;
  test_must(threadpool_scope_begin(w, &scope) == 0);
  for (intptr_t i = 0; i < SPAWNS; i++) {
    void *crashes_here = i == (intptr_t)at ? (void *)1 : NULL;
    test_must(threadpool_spawn(w, &scope, count_or_crash, crashes_here) == 0);
    if (i % 8 == 0) test_must(threadpool_spawn(w, &scope, spawn_more, &scope) == 0);
  }
  if ((intptr_t)at < 0) write_null(NULL); /* the one who has it open */
  threadpool_scope_end(w, &scope);
  test_must(!"reached");
}
static tp_poll crash_in_a_scope(tp_task *t, void *arg) {
  attempt a = {scope_with_a_crash, arg, SIGSEGV};
  tp_poll outcome = try_it(t, &a);
  tp_store(&over, true, release);
  return outcome;
}
static void spawns_of_a_scope(void **state) {
  (void)state;
  begin(3);
  for (long i = 0, n = often(); i < n; i++) {
    reset();
    intptr_t at = i % (SPAWNS + 1) - 1;
    assert_int_equal(test_end_of(spawn(pool, crash_in_a_scope, (void *)at, false)), 0);
    assert_int_equal(begun, ended + (at >= 0)); /* wrong: one that had begun was not waited for */
  }
  finish();
}

/* What was spawned into a scope that goes on is run, though who spawned it has crashed. */
static void spawn_into_outer(void *scope) {
  for (int i = 0; i < SPAWNS; i++)
    test_must(threadpool_spawn(threadpool_current(), scope, count_or_crash, NULL) == 0);
  write_null(NULL);
}
static void crash_inside_a_scope(void *guarded) {
  threadpool_worker *w = threadpool_current();
  threadpool_scope scope;
  test_must(threadpool_scope_begin(w, &scope) == 0);
  tp_crash crash;
  test_must(!tp_guard_run(spawn_into_outer, &scope, &crash));
  test_must(threadpool_current() == w); /* the scope belongs to the seat */
  test_must(threadpool_scope_end(w, &scope) == 0);
  test_must(tp_load(&ended, relaxed) == SPAWNS);
  (void)guarded;
}
static tp_poll unguarded_scope(tp_task *t, void *arg) {
  (void)t;
  crash_inside_a_scope(arg);
  return TP_READY;
}
static void an_outer_scope_goes_on(void **state) {
  (void)state;
  begin(2);
  for (long i = often() / 10; i > 0; i--) {
    reset();
    try_and_wait((attempt){crash_inside_a_scope, NULL, 0});
    reset();
    assert_int_equal(test_end_of(spawn(pool, unguarded_scope, NULL, false)), 0);
  }
  finish();
}

/* --- who else is concerned */

/* Three workers: one waits in a guarded function and helps, one holds what it waits for, and the third forks the job
 * that crashes, which only the first can take. Wrong: the healthy function is left too. */
static void hold_until_over(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
  tp_store(&go, true, release);
  test_wait(tp_load(&over, acquire));
}
static void wait_and_help(void *arg) {
  (void)arg;
  threadpool_worker *w = threadpool_current();
  threadpool_job job;
  threadpool_fork(w, &job, hold_until_over, NULL);
  test_wait(tp_load(&go, acquire));
  threadpool_sync(w, &job);
}
static tp_poll crash_at_the_helper(tp_task *t, void *arg) {
  test_wait(tp_load(&go, acquire));
  attempt a = {fork_and_crash_there, &begun, SIGSEGV};
  tp_poll outcome = try_it(t, &a);
  tp_store(&over, true, release);
  (void)arg;
  return outcome;
}
static void who_helped_goes_on(void **state) {
  (void)state;
  begin(3);
  int before = threads();
  for (long i = often() / 10; i > 0; i--) {
    reset();
    attempt helps = {wait_and_help, NULL, 0};
    tp_task *h = spawn(pool, try_it, &helps, false);
    assert_int_equal(test_end_of(spawn(pool, crash_at_the_helper, NULL, false)), 0);
    assert_int_equal(test_end_of(h), 0);
  }
  test_wait(threads() <= before + 1);
  finish();
}

/* The same, but the helper is a thread of the program's own, in the main seat. */
static void call_and_help(threadpool_worker *w, void *arg) {
  (void)arg;
  threadpool_job job;
  threadpool_fork(w, &job, hold_until_over, NULL);
  test_wait(tp_load(&go, acquire));
  threadpool_sync(w, &job);
}
static void a_caller_helped(void **state) {
  (void)state;
  begin(2);
  for (long i = often() / 10; i > 0; i--) {
    reset();
    tp_task *t = spawn(pool, crash_at_the_helper, NULL, false);
    assert_int_equal(threadpool_call(pool, call_and_help, NULL), 0);
    assert_int_equal(test_end_of(t), 0);
  }
  finish();
}

/* It has given its seat away before it crashes. */
static tp_poll ready(tp_task *t, void *arg) {
  (void)t, (void)arg;
  return TP_READY;
}
static void wait_then_crash(void *arg) {
  tp_task *t = spawn(pool, ready, NULL, true);
  test_must(tp_task_wait(t, 0) == 0);
  tp_task_unref(t);
  write_null(arg);
}
static void without_a_seat(void **state) {
  (void)state;
  begin(1);
  for (long i = often() / 10; i > 0; i--) try_and_wait((attempt){wait_then_crash, NULL, SIGSEGV});
  finish();
}

/* --- the seat's queues */

enum { QUEUED = 200 };
static _Atomic int runs[QUEUED];
static tp_poll count_run(tp_task *t, void *arg) {
  (void)t;
  tp_add((_Atomic int *)arg, 1, relaxed);
  tp_add(&ended, 1, release);
  return TP_READY;
}
static void queue_and_crash(void *arg) {
  for (int i = 0; i < QUEUED; i++) {
    tp_spawn_spec spec = {.poll = count_run, .arg = (void *)&runs[i], .priority = TP_NORMAL};
    test_must(tp_spawn(pool->tasks, &spec, NULL) == 0);
  }
  write_null(arg);
}
static void queued_tasks_run_once(void **state) {
  (void)state;
  for (int workers = 1; workers <= 2; workers++) {
    begin(workers);
    for (long i = often() / 10; i > 0; i--) {
      reset();
      for (int k = 0; k < QUEUED; k++) tp_store(&runs[k], 0, relaxed);
      try_and_wait((attempt){queue_and_crash, NULL, SIGSEGV});
      test_wait(tp_load(&ended, acquire) == QUEUED);
      for (int k = 0; k < QUEUED; k++) assert_int_equal(runs[k], 1);
    }
    finish();
    for (int k = 0; k < QUEUED; k++) assert_int_equal(runs[k], 1);
  }
}

/* A parent that awaits the child on the same worker goes on elsewhere. */
typedef struct family {
  tp_task *child;
  attempt a;
} family;
static tp_poll await_a_crash(tp_task *t, void *arg) {
  family *f = arg;
  if (!f->child) f->child = spawn(pool, try_it, &f->a, false);
  if (tp_task_await(t, f->child) == TP_PENDING) return TP_PENDING;
  test_must(threadpool_current() != NULL);
  tp_task_unref(f->child);
  return TP_READY;
}
static void a_parent_goes_on(void **state) {
  (void)state;
  begin(1);
  for (long i = often() / 10; i > 0; i--) {
    family f = {NULL, {write_null, NULL, SIGSEGV}};
    assert_int_equal(test_end_of(spawn(pool, await_a_crash, &f, false)), 0);
  }
  finish();
}

/* Wrong: the seat is lost, and the pool with it. */
static void crash_without_threads(void *arg) {
  tp_fail_at(1);
  write_null(arg);
}
static tp_poll keep_the_seat(tp_task *t, void *arg) {
  (void)t, (void)arg;
  threadpool_worker *w = threadpool_current();
  tp_crash crash;
  test_must(!tp_guard_run(crash_without_threads, NULL, &crash));
  tp_fail_at(0);
  test_must(threadpool_current() == w && crash.signal == SIGSEGV);
  return TP_READY;
}
static void no_thread_to_be_had(void **state) {
  (void)state;
  begin(1);
  assert_int_equal(test_end_of(spawn(pool, keep_the_seat, NULL, false)), 0);
  finish();
}

/* --- two pools */

static void two_pools(void **state) {
  (void)state;
  struct sigaction first, last;
  sigaction(SIGSEGV, NULL, &first);
  begin(2);
  threadpool_t *other = test_pool((threadpool_options){.workers = 2});
  attempt a = {write_null, NULL, SIGSEGV};
  tp_task *t[40];
  for (int i = 0; i < 40; i++) t[i] = spawn(i % 2 ? pool : other, try_it, &a, false);
  for (int i = 0; i < 40; i++) assert_int_equal(test_end_of(t[i]), 0);
  assert_int_equal(crashes, 40);
  works(other);
  assert_int_equal(threadpool_shutdown(other), 0);
  try_and_wait(a);
  finish();
  sigaction(SIGSEGV, NULL, &last);
  assert_ptr_equal(first.sa_handler, last.sa_handler);
}

/* --- what is not ours. Each in a child: what it died of, or the status it ended with. */

/* Not _exit: ThreadSanitizer would look for threads that were not joined. */
static void leave_child(int status) {
  syscall(SYS_exit_group, status);
}
static int child(void (*fn)(void)) {
  fflush(NULL);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    for (int s = 1; s < 32; s++) signal(s, SIG_DFL); /* cmocka's */
    alarm(60);
    fn();
    leave_child(99);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void start(void) {
  reset();
  threadpool_options o = {.workers = 2};
  pool = threadpool_create_with(&o, NULL);
  test_must(pool != NULL);
}
static void in_a_guard(void (*fn)(void *)) {
  attempt a = {fn, NULL, SIGSEGV};
  tp_task *t = spawn(pool, try_it, &a, false);
  test_must(tp_task_wait(t, 0) == 0);
  tp_task_unref(t);
}

static tp_poll crash_unguarded(tp_task *t, void *arg) {
  (void)t;
  ((void (*)(void *))arg)(NULL);
  return TP_READY;
}
static void task_unguarded(void) {
  start();
  tp_task_wait(spawn(pool, crash_unguarded, (void *)write_null, false), 0);
}
static void task_divides_unguarded(void) {
  start();
  tp_task_wait(spawn(pool, crash_unguarded, (void *)illegal, false), 0);
}
static void after_a_guard(void) {
  start();
  in_a_guard(write_null);
  tp_task_wait(spawn(pool, crash_unguarded, (void *)write_null, false), 0);
}
static void call_crash(threadpool_worker *w, void *arg) {
  (void)w;
  write_null(arg);
}
static void in_the_main_seat(void) {
  start();
  threadpool_call(pool, call_crash, NULL);
}
static void call_and_crash_stolen(threadpool_worker *w, void *arg) {
  threadpool_job job;
  threadpool_fork(w, &job, crash_as_a_job, arg);
  test_wait(tp_load(&begun, acquire) > 0);
  threadpool_sync(w, &job);
}
static void stolen_from_the_main_seat(void) {
  start();
  threadpool_call(pool, call_and_crash_stolen, NULL);
}
static void *thread_crash(void *arg) {
  write_null(arg);
  return NULL;
}
static void in_a_thread_of_the_host(void) {
  start();
  pthread_t t;
  pthread_create(&t, NULL, thread_crash, NULL);
  pthread_join(t, NULL);
}
static void inside_the_library(void *arg) {
  tp_lock l = {0};
  tp_lock_acquire(&l);
  write_null(arg);
}
static void with_a_lock_held(void) {
  start();
  in_a_guard(inside_the_library);
}
static void broadcast_crash(void *arg) {
  threadpool_broadcast(pool, call_crash, arg);
}
static void in_a_broadcast(void) {
  start();
  in_a_guard(broadcast_crash);
}
static void call_another_pool(void *arg) {
  threadpool_options o = {.workers = 1};
  threadpool_call(threadpool_create_with(&o, NULL), call_crash, arg);
}
static void in_another_pool(void) {
  start();
  in_a_guard(call_another_pool);
}
/* The worker that waits in a guarded function is the only one who can take it. */
static void where_a_guarded_one_helps(void) {
  start();
  attempt helps = {wait_and_help, NULL, 0};
  spawn(pool, try_it, &helps, false);
  test_wait(tp_load(&go, acquire));
  threadpool_call(pool, call_and_crash_stolen, NULL);
}
static void raise_it(void *arg) {
  (void)arg;
  raise(SIGSEGV);
}
static void a_signal_that_was_sent(void) {
  start();
  in_a_guard(raise_it);
}
static void killed_from_outside(void) {
  start();
  kill(getpid(), SIGBUS);
  pause();
}
static void abort_it(void *arg) {
  (void)arg;
  abort();
}
static void aborted(void) {
  start();
  in_a_guard(abort_it);
}
static void the_rest_kills(void **state) {
  (void)state;
  assert_int_equal(child(task_unguarded), -SIGSEGV);
  assert_int_equal(child(task_divides_unguarded), -SIGILL);
  assert_int_equal(child(after_a_guard), -SIGSEGV);
  assert_int_equal(child(in_the_main_seat), -SIGSEGV);
  assert_int_equal(child(stolen_from_the_main_seat), -SIGSEGV);
  assert_int_equal(child(in_a_thread_of_the_host), -SIGSEGV);
  assert_int_equal(child(with_a_lock_held), -SIGSEGV);
  assert_int_equal(child(in_a_broadcast), -SIGSEGV);
  assert_int_equal(child(in_another_pool), -SIGSEGV);
  assert_int_equal(child(where_a_guarded_one_helps), -SIGSEGV);
  assert_int_equal(child(a_signal_that_was_sent), -SIGSEGV);
  assert_int_equal(child(killed_from_outside), -SIGBUS);
  assert_int_equal(child(aborted), -SIGABRT);
}

static void with_info(int sig, siginfo_t *info, void *context) {
  leave_child(sig == SIGSEGV && info->si_code > 0 && info->si_addr == NULL && context ? 40 : 1);
}
static void without_info(int sig) {
  leave_child(sig == SIGSEGV ? 41 : 1);
}
static void return_from_it(int sig) {
  (void)sig;
  tp_add(&ended, 1, relaxed);
}
static void set_handler(void (*info)(int, siginfo_t *, void *), void (*plain)(int)) {
  struct sigaction a = {.sa_handler = plain};
  if (info) a.sa_sigaction = info, a.sa_flags = SA_SIGINFO;
  sigemptyset(&a.sa_mask);
  sigaction(SIGSEGV, &a, NULL);
}
static void host_with_info(void) {
  set_handler(with_info, NULL);
  start();
  in_a_guard(write_null); /* ours */
  write_null(NULL);       /* the host's */
}
static void host_without_info(void) {
  set_handler(NULL, without_info);
  start();
  in_a_guard(write_null);
  tp_task_wait(spawn(pool, crash_unguarded, (void *)write_null, false), 0);
}
static void returns_from_raise(void *arg) {
  raise(SIGSEGV);
  raise(SIGSEGV);
  test_must(tp_load(&ended, relaxed) == 2);
  write_null(arg);
}
static void host_gets_what_was_sent(void) {
  set_handler(NULL, return_from_it);
  start();
  in_a_guard(returns_from_raise);
  test_must(tp_load(&ended, relaxed) == 2);
  threadpool_shutdown(pool);
  raise(SIGSEGV); /* its handler is back */
  leave_child(tp_load(&ended, relaxed) == 3 ? 42 : 1);
}
static void ignored(void) {
  signal(SIGSEGV, SIG_IGN);
  start();
  raise(SIGSEGV);
  write_null(NULL); /* that cannot be ignored */
}
static struct sigaction replaced;
static void chain(int sig, siginfo_t *info, void *context) {
  test_must(tp_add(&ended, 1, relaxed) < 10); /* wrong: round and round */
  replaced.sa_sigaction(sig, info, context);
}
/* A host that puts its handler in front of ours, and calls it. */
static void host_in_front(void) {
  start();
  struct sigaction a = {.sa_sigaction = chain, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  sigemptyset(&a.sa_mask);
  sigaction(SIGSEGV, &a, &replaced);
  in_a_guard(write_null);
  threadpool_shutdown(pool);
  start();
  in_a_guard(write_null);
  write_null(NULL);
}
static void the_host_gets_the_rest(void **state) {
  (void)state;
  assert_int_equal(child(host_with_info), 40);
  assert_int_equal(child(host_without_info), 41);
  assert_int_equal(child(host_gets_what_was_sent), 42);
  assert_int_equal(child(ignored), -SIGSEGV);
  assert_int_equal(child(host_in_front), -SIGSEGV);
}

/* X4. A recursion whose frames are smaller than what the library needs overflows in the library, at every depth of it: each
 * section finds out before it begins. Wrong: it does so inside, and the process dies. */
BROKEN static int spawn_without_end(threadpool_worker *w, threadpool_scope *scope) {
  volatile char room = 0;
  test_must(threadpool_spawn(w, scope, short_job, (void *)&begun) == 0);
  return room == 1 ? 0 : spawn_without_end(w, scope) + room;
}
static void overflow_in_spawn(void *arg) {
  (void)arg;
  threadpool_scope scope;
  test_must(threadpool_scope_begin(threadpool_current(), &scope) == 0);
  zero = spawn_without_end(threadpool_current(), &scope) * 0;
}
BROKEN static int start_without_end(tp_task **last) {
  volatile char room = 0;
  tp_task *t = *last;
  *last = spawn(pool, ready, NULL, false);
  if (t) tp_task_unref(t);
  return room == 1 ? 0 : start_without_end(last) + room;
}
static void overflow_in_a_start(void *last) {
  zero = start_without_end(last) * 0;
}
static void overflow_in_the_library(void) {
  start();
  for (int i = 0; i < 3; i++) {
    in_a_guard(overflow_in_spawn);
    tp_task *last = NULL;
    try_and_wait((attempt){overflow_in_a_start, &last, SIGSEGV});
  }
  leave_child(43);
}
static void a_section_has_its_stack(void **state) {
  (void)state;
#ifdef TEST_SANITIZED
  print_message("left out: instrumented code needs more stack than two pages\n");
  (void)overflow_in_the_library;
#else
  assert_int_equal(child(overflow_in_the_library), 43);
#endif
}

/* Frames of many pages of which only the lowest is written: they step over a narrow guard into what lies below, which is
 * another thread's stack. Wrong: that is overwritten. */
BROKEN static int wide_from(int depth) {
  volatile char room[60 << 10];
  room[0] = (char)depth;
  return depth < zero - 1 ? 0 : wide_from(depth + 1) + room[0]; /* never */
}
enum { BEHIND = 1 << 20 };
static void wide_overflow(void *base) {
  pthread_attr_t attr;
  size_t size, guard;
  test_must(pthread_getattr_np(pthread_self(), &attr) == 0);
  test_must(pthread_attr_getstack(&attr, base, &size) == 0);
  test_must(pthread_attr_getguardsize(&attr, &guard) == 0);
  pthread_attr_destroy(&attr);
  /* What lies behind it, unless there is something already. */
  mmap(*(char **)base - guard - BEHIND, BEHIND, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  zero = wide_from(0) * 0;
}
static tp_poll overflow_widely(tp_task *t, void *arg) {
  (void)t, (void)arg;
  char *base = NULL; /* the guard ends there */
  tp_crash crash = {0};
  test_must(!tp_guard_run(wide_overflow, &base, &crash));
  test_must(crash.signal == SIGSEGV);
  test_must((char *)crash.address < base && (char *)crash.address >= base - (64 << 10));
  return TP_READY;
}
static void wide_frames(void) {
  start();
  for (int i = 0; i < 10; i++) {
    tp_task *t = spawn(pool, overflow_widely, NULL, i % 2);
    test_must(tp_task_wait(t, 0) == 0);
    tp_task_unref(t);
  }
  leave_child(threadpool_shutdown(pool) == 0 ? 44 : 1);
}
static void a_stack_overflows_in_wide_steps(void **state) {
  (void)state;
  assert_int_equal(child(wide_frames), 44);
}

/* --- the cost, for those who want to know: TP_STRESS=1 */

static void nothing(void *arg) {
  (void)arg;
  __asm__ volatile("");
}
static tp_poll measure(tp_task *t, void *arg) {
  (void)t, (void)arg;
  enum { CALLS = 10000000 };
  for (int round = 0; round < 3; round++) {
    uint64_t at = tp_now_ns();
    for (int i = 0; i < CALLS; i++) test_must(tp_guard_run(nothing, NULL, NULL));
    print_message("a guarded call: %.1f ns\n", (double)(tp_now_ns() - at) / CALLS);
  }
  return TP_READY;
}
static void what_it_costs(void **state) {
  (void)state;
  begin(1);
  if (getenv("TP_STRESS")) assert_int_equal(test_end_of(spawn(pool, measure, NULL, false)), 0);
  finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(null_write),
      cmocka_unit_test(integer_division),
      cmocka_unit_test(illegal_instruction),
      cmocka_unit_test(bus_error),
      cmocka_unit_test(stack_overflow),
      cmocka_unit_test(blocking_thread),
      cmocka_unit_test(shared_object),
      cmocka_unit_test(stolen_jobs_under_way),
      cmocka_unit_test(a_stolen_job),
      cmocka_unit_test(a_recursion_that_forks),
      cmocka_unit_test(trees_on_many_workers),
      cmocka_unit_test(spawns_of_a_scope),
      cmocka_unit_test(an_outer_scope_goes_on),
      cmocka_unit_test(who_helped_goes_on),
      cmocka_unit_test(a_caller_helped),
      cmocka_unit_test(without_a_seat),
      cmocka_unit_test(queued_tasks_run_once),
      cmocka_unit_test(a_parent_goes_on),
      cmocka_unit_test(no_thread_to_be_had),
      cmocka_unit_test(two_pools),
      cmocka_unit_test(the_rest_kills),
      cmocka_unit_test(the_host_gets_the_rest),
      cmocka_unit_test(a_section_has_its_stack),
      cmocka_unit_test(a_stack_overflows_in_wide_steps),
      cmocka_unit_test(what_it_costs),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
