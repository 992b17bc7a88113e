/* test_process.c - what a pool means to the process: exit in every form, fork, signals, dlclose (docs/PROCESS.md).
 *
 * What can go wrong ends a process: so everything happens in children, whose exit status is looked at. One that hangs is
 * killed after a minute, and seen as that. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "help.h"
#include "sched/stop.h"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_TSAN /* it calls signal handlers only when the thread calls something */
#define UNDER_TSAN 0
#endif
#ifdef TEST_SANITIZED /* their heap is not fit for a fork while another thread uses it */
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* In children: nothing is freed at exit, and much is reached from mapped memory only. */
static bool leaks_do_not_count;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
  return leaks_do_not_count;
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
  return "die_after_fork=0:atexit_sleep_ms=0:report_thread_leaks=0";
}

extern char **environ;

/* --- children */

enum { PATIENCE_S = 60, HANGS = -1 };

/* The exit status; 1000 + the signal it died of; HANGS. */
static int outcome_of(pid_t pid) {
  uint64_t until = tp_now_ns() + PATIENCE_S * TP_NS_PER_S;
  int status;
  for (pid_t got; (got = waitpid(pid, &status, WNOHANG)) != pid;) {
    if (got < 0 && errno != EINTR) return HANGS;
    if (tp_now_ns() > until) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return HANGS;
    }
    usleep(200);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static int runs(void) {
  return (int)test_size(3, 20);
}

/* What fn, which does not return, makes of a child that has but one thread, like a program that was just started. */
static int child(void (*fn)(void)) {
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    leaks_do_not_count = true;
    fn();
    _exit(101);
  }
  return outcome_of(pid);
}

#define again_and_again(fn, expected)                                                              \
  for (int i_ = 0; i_ < runs(); i_++) assert_int_equal(child(fn), expected)

/* For the children: they cannot use cmocka's assertions. */
#define must_be(condition)                                                                         \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      fprintf(stderr, "%s:%d: wrong: %s\n", __FILE__, __LINE__, #condition);                       \
      _exit(102);                                                                                  \
    }                                                                                              \
  } while (0)

/* --- handlers */

static _Atomic int begun;
static _Atomic uint64_t rounds;

static void until_cancelled(task_t *t) {
  tp_add(&begun, 1, relaxed);
  while (!threadpool_cancelled(t)) usleep(100);
}
static int go_round(task_t *t, void **state) {
  (void)t, (void)state;
  return THREADPOOL_AGAIN;
}
static int wait_for_ever(task_t *t, void **state) {
  (void)t, (void)state;
  return THREADPOOL_PENDING;
}
static void emit_for_ever(task_t *t) {
  while (threadpool_emit(t, "part", 4) == 0) continue;
}
static void spin(task_t *t) {
  (void)t;
  tp_add(&begun, 1, relaxed);
  for (;;) tp_add(&rounds, 1, relaxed);
}
static FILE *sink;                       /* its lock is wanted by exit too */
static void use_the_library(task_t *t) { /* locks that the end of the process needs */
  (void)t;
  tp_add(&begun, 1, relaxed);
  for (size_t n = 1;; n = n * 7 % 200000 + 1) {
    char *volatile p = malloc(n);
    if (p) p[0] = 1;
    free(p);
    for (int i = 0; i < 100; i++) fputs("some text", sink);
    tp_add(&rounds, 1, relaxed);
  }
}
static void block(task_t *t) {
  (void)t;
  tp_add(&begun, 1, relaxed);
  for (;;) pause();
}
static void exit_9(task_t *t) {
  (void)t;
  tp_add(&begun, 1, relaxed);
  exit(9);
}

static threadpool_t *make(int workers) {
  threadpool_t *pool = threadpool_create_with(&(threadpool_options){.workers = workers}, NULL);
  if (!pool) return NULL;
  const threadpool_handler handlers[] = {
      {.name = "until_cancelled", .opcode = -1, .run = until_cancelled, .blocking = true},
      {.name = "go_round", .opcode = -1, .poll = go_round},
      {.name = "wait_for_ever", .opcode = -1, .poll = wait_for_ever},
      {.name = "emit_for_ever", .opcode = -1, .run = emit_for_ever},
      {.name = "spin", .opcode = -1, .run = spin},
      {.name = "use_the_library", .opcode = -1, .run = use_the_library},
      {.name = "block", .opcode = -1, .run = block},
      {.name = "exit_9", .opcode = -1, .run = exit_9},
      {.name = "exit_9_blocking", .opcode = -1, .run = exit_9, .blocking = true},
  };
  for (size_t i = 0; i < sizeof handlers / sizeof *handlers; i++)
    must_be(threadpool_register(pool, &handlers[i]) == 0);
  return pool;
}

static uint64_t submit(threadpool_t *pool, const char *op) {
  char text[100];
  snprintf(text, sizeof text, "{\"op\": \"%s\"}", op);
  uint64_t id = threadpool_submit(pool, text);
  must_be(id != 0);
  return id;
}

static void submit_echo_and_fetch(threadpool_t *pool) {
  uint64_t id = threadpool_submit(pool, "{\"op\": \"echo\", \"args\": {\"text\": \"hello\"}}");
  must_be(id != 0);
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  must_be(r && r->status == 0 && strcmp(r->data, "{\"text\":\"hello\"}") == 0);
  threadpool_result_free(r);
}

/* --- exit */

static void fill(threadpool_t *pool) {
  static const char *const kinds[] = {"go_round", "wait_for_ever", "emit_for_ever", "echo"};
  for (int i = 0; i < 20; i++) submit(pool, "until_cancelled");
  for (int i = 0; i < 480; i++) submit(pool, kinds[i % 4]);
  for (int i = 0; i < 500; i++)
    must_be(threadpool_submit(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 100000}}") != 0);
}

static void exit_with_tasks(void) {
  threadpool_t *pool = make(3);
  fill(pool);
  exit(7);
}
static void exit_with_pools(void) {
  for (int i = 0; i < 4; i++) fill(make(1 + i));
  threadpool_t *closed = make(2);
  must_be(threadpool_shutdown(closed) == 0);
  exit(8);
}
static void underscore_exit(void) {
  fill(make(3));
  _exit(3);
}
static void be_quick(void) {
  fill(make(3));
  quick_exit(4);
}
static void exit_with_a_pool_that_idles(void) {
  threadpool_t *pool = make(2);
  submit_echo_and_fetch(pool);
  exit(0);
}

static void exit_with_a_thousand_tasks_in_flight(void **state) {
  (void)state;
  again_and_again(exit_with_tasks, 7);
  again_and_again(exit_with_pools, 8);
}
static void exit_without_handlers(void **state) {
  (void)state;
  again_and_again(underscore_exit, 3);
  again_and_again(be_quick, 4);
}
static void exit_while_nothing_is_to_be_done(void **state) {
  (void)state;
  again_and_again(exit_with_a_pool_that_idles, 0);
}

/* main() of this program, started anew. */
static int forgetful_main(void) {
  leaks_do_not_count = true;
  threadpool_t *pool = make(2);
  fill(pool);
  return 5;
}
static int started_again(char *argument) {
  fflush(NULL);
  pid_t pid;
  char *argv[] = {(char *)"test_process", argument, NULL};
  assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
  return outcome_of(pid);
}
static void a_pool_that_main_forgets(void **state) {
  (void)state;
  for (int i = 0; i < runs(); i++) assert_int_equal(started_again((char *)"--forget"), 5);
}

/* The results of what is cancelled are not seen by main, which would exit with 1. */
static void exit_inside_with(int workers, const char *op, const char *other) {
  threadpool_t *pool = make(workers);
  uint64_t waited_for = submit(pool, other);
  for (int i = 0; i < 100; i++) submit(pool, i % 2 ? "go_round" : "wait_for_ever");
  submit(pool, op);
  threadpool_result_free(threadpool_wait_result(pool, waited_for, UINT32_MAX));
  exit(1);
}
static void exit_inside_1(void) {
  exit_inside_with(1, "exit_9", "wait_for_ever");
}
static void exit_inside_3(void) {
  exit_inside_with(3, "exit_9", "wait_for_ever");
}
static void exit_inside_blocking(void) {
  exit_inside_with(2, "exit_9_blocking", "wait_for_ever");
}
static void exit_inside_beside_blocking(void) {
  exit_inside_with(2, "exit_9", "until_cancelled");
}
static void exit_inside_while_main_drains(void) {
  threadpool_t *pool = make(2);
  submit(pool, "exit_9");
  threadpool_shutdown(pool);
  for (;;) pause();
}
static void exit_from_a_handler(void **state) {
  (void)state;
  again_and_again(exit_inside_1, 9);
  again_and_again(exit_inside_3, 9);
  again_and_again(exit_inside_blocking, 9);
  again_and_again(exit_inside_beside_blocking, 9);
  again_and_again(exit_inside_while_main_drains, 9);
}

static void exit_in_a_call_fn(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
  exit(6);
}
static void exit_in_a_call(void) {
  threadpool_t *pool = make(2);
  fill(pool);
  threadpool_call(pool, exit_in_a_call_fn, NULL);
}
static void exit_in_a_job_fn(threadpool_worker *w, void *arg) {
  (void)w;
  if (tp_swap((_Atomic bool *)arg, true, relaxed)) exit(6);
  for (;;) usleep(100);
}
static void exit_in_jobs_fn(threadpool_worker *w, void *arg) {
  threadpool_join(w, exit_in_a_job_fn, arg, exit_in_a_job_fn, arg);
}
static void exit_in_a_job(void) {
  _Atomic bool second = false;
  threadpool_t *pool = make(2);
  threadpool_call(pool, exit_in_jobs_fn, (void *)&second);
}
static void exit_in_calls_and_jobs(void **state) {
  (void)state;
  again_and_again(exit_in_a_call, 6);
  again_and_again(exit_in_a_job, 6);
}

/* Registered before the pool's, so called after it: nothing of ours may move any more, and what the C library needs to
 * end must be free. */
static bool in_the_library; /* there it may not be parked (P8) */
static void nothing_moves(void) {
  uint64_t before = tp_load(&rounds, relaxed);
  usleep(5000);
  if (!UNDER_TSAN && !in_the_library && tp_load(&rounds, relaxed) != before) _exit(103);
  for (size_t n = 1; n < 1000000; n *= 3) {
    char *volatile p = malloc(n);
    if (p) p[0] = 1;
    free(p);
  }
  fputs("some text", sink);
  fflush(NULL);
}
static void exit_beside(const char *op, int n) {
  atexit(nothing_moves);
  must_be((sink = fopen("/dev/null", "w")) != NULL);
  threadpool_t *pool = make(n);
  for (int i = 0; i < n; i++) submit(pool, op);
  submit(pool, "echo");
  while (tp_load(&begun, relaxed) < n) usleep(100);
  exit(11);
}
static void exit_beside_spin(void) {
  exit_beside("spin", 2);
}
static void exit_beside_library(void) {
  in_the_library = true;
  exit_beside("use_the_library", 3);
}
static void exit_beside_block(void) {
  exit_beside("block", 2);
}
static void a_handler_that_does_not_end_is_parked(void **state) {
  (void)state;
  void (*const beside[])(void) = {exit_beside_spin, exit_beside_library, exit_beside_block};
  for (int i = 0; i < runs(); i++) assert_int_equal(child(beside[i % 3]), 11); /* 0.5 s each */
}

/* --- exit beside others */

static void *shut_down(void *pool) {
  tp_add(&begun, 1, relaxed);
  threadpool_shutdown(pool);
  return NULL;
}
static void *wait_for_one(void *pool) {
  uint64_t id = submit(pool, "wait_for_ever");
  tp_add(&begun, 1, relaxed);
  result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
  must_be(r && (r->status == ERR_CANCELLED || r->status == ERR_SHUTDOWN));
  threadpool_result_free(r);
  must_be(threadpool_submit(pool, "{\"op\": \"echo\"}") == 0);
  return NULL;
}
static pthread_t thread_of(void *(*fn)(void *), void *arg) {
  pthread_t t;
  must_be(pthread_create(&t, NULL, fn, arg) == 0);
  return t;
}
static void exit_beside_a_shutdown(void) {
  threadpool_t *pool = make(2); /* it would drain for 5 s */
  fill(pool);
  thread_of(shut_down, pool);
  while (!tp_load(&begun, relaxed)) usleep(10);
  usleep((useconds_t)(getpid() % 1000));
  exit(12);
}
static pthread_t waiter;
static void waiter_comes_back(void) {
  pthread_join(waiter, NULL);
}
static void exit_beside_a_wait(void) {
  atexit(waiter_comes_back); /* called last */
  threadpool_t *pool = make(2);
  waiter = thread_of(wait_for_one, pool);
  while (!tp_load(&begun, relaxed)) usleep(10);
  usleep((useconds_t)(getpid() % 1000));
  exit(13);
}
static void exit_beside_other_threads(void **state) {
  (void)state;
  again_and_again(exit_beside_a_shutdown, 12);
  again_and_again(exit_beside_a_wait, 13);
}

/* What is called after our exit handler: destructors of the program that close its pool, make another one. */
static threadpool_t *left_open;
static void use_it_afterwards(void) {
  if (threadpool_submit(left_open, "{\"op\": \"echo\"}") != 0) _exit(104);
  if (threadpool_shutdown(left_open) != ERR_INVALID_ARGUMENT) _exit(105);
  if (threadpool_create(NULL)) _exit(106);
}
static void exit_and_use_it(void) {
  atexit(use_it_afterwards);
  left_open = make(2);
  fill(left_open);
  exit(14);
}
static void close_it(void) {
  if (threadpool_shutdown_within(left_open, -1) != 0) _exit(107);
}
static void exit_and_close_it(void) {
  left_open = make(2);
  fill(left_open);
  atexit(close_it); /* called first */
  exit(15);
}
static void exit_handlers_of_the_program(void **state) {
  (void)state;
  again_and_again(exit_and_use_it, 14);
  again_and_again(exit_and_close_it, 15);
}

/* --- signals */

static void end_by_signal(int sig) {
  fill(make(2));
  kill(getpid(), sig);
  for (;;) pause();
}
static void end_by_int(void) {
  end_by_signal(SIGINT);
}
static void end_by_term(void) {
  end_by_signal(SIGTERM);
}
static void on_int(int sig) {
  (void)sig;
  exit(16);
}
static void interrupted_anywhere(void) {
  signal(SIGALRM, on_int);
  threadpool_t *pool = make(2);
  ualarm((useconds_t)(2000 + getpid() % 1000), 0);
  for (;;) { /* without the heap: which is no place to call exit from */
    uint64_t id = submit(pool, "wait_for_ever");
    threadpool_cancel(pool, id);
    threadpool_detach(pool, id);
  }
}
static void the_end_by_a_signal(void **state) {
  (void)state;
  again_and_again(end_by_int, 1000 + SIGINT);
  again_and_again(end_by_term, 1000 + SIGTERM);
  if (!SANITIZED) again_and_again(interrupted_anywhere, 16);
}

/* A line of a thread's status, as a number. */
static uint64_t mask_of(const char *tid, const char *line) {
  char path[300], text[200];
  uint64_t mask = 0;
  snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
  FILE *f = fopen(path, "r");
  while (f && fgets(text, sizeof text, f))
    if (strncmp(text, line, strlen(line)) == 0) mask = strtoull(text + strlen(line), NULL, 16);
  if (f) fclose(f);
  return mask;
}

/* Of every thread but this one; alarm, reactor and blocking threads are there. */
static int threads_that_block(int sig) {
  int blocking = 0, others = 0;
  DIR *d = opendir("/proc/self/task");
  must_be(d != NULL);
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.' || atoi(e->d_name) == getpid()) continue;
    others++;
    blocking += mask_of(e->d_name, "SigBlk:") >> (sig - 1) & 1;
  }
  closedir(d);
  return blocking == others ? others : -1;
}

static void nothing(threadpool_worker *w, void *arg) {
  (void)w, (void)arg;
}
static void join_nothing(threadpool_worker *w, void *arg) {
  (void)arg;
  threadpool_join(w, nothing, NULL, nothing, NULL);
}

static volatile sig_atomic_t came;
static void count(int sig) {
  (void)sig;
  came++;
}

/* Blocked here, so only a thread of ours could take it: it stays pending. */
static void signals_stay_with_the_host(void) {
  static const int sigs[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGUSR1,
                             SIGUSR2, SIGALRM, SIGCHLD, SIGPIPE, SIGWINCH};
  enum { SIGS = sizeof sigs / sizeof *sigs };
  sigset_t set, pending;
  sigemptyset(&set);
  for (int i = 0; i < SIGS; i++) {
    signal(sigs[i], count);
    sigaddset(&set, sigs[i]);
  }
  threadpool_t *pool = make(3);
  fill(pool); /* with it the reactor and the blocking threads; forks start the alarm */
  for (int i = 0; i < 1000; i++) threadpool_call(pool, join_nothing, NULL);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  for (int i = 0; i < SIGS; i++) kill(getpid(), sigs[i]);
  for (int i = 0; i < 50; i++) usleep(100);
  sigpending(&pending);
  for (int i = 0; i < SIGS; i++) must_be(sigismember(&pending, sigs[i]));
  must_be(came == 0);
  if (!SANITIZED) /* they have threads of their own */
    for (int i = 0; i < SIGS; i++) must_be(threads_that_block(sigs[i]) >= 3 + 1 + 20);
  pthread_sigmask(SIG_UNBLOCK, &set, NULL);
  must_be(came == SIGS);
  must_be(threadpool_shutdown_within(pool, -1) == 0);
  exit(0);
}
static void signals_of_the_host_are_not_ours(void **state) {
  (void)state;
  again_and_again(signals_stay_with_the_host, 0);
}

/* --- the signal that stops one thread */

static sigjmp_buf back;
static pthread_t stopped;
static _Atomic bool ready;

static void go_back(siginfo_t *info, void *context) {
  must_be(info->si_code == SI_TKILL && context);
  tp_stop_unblock(context);
  siglongjmp(back, 1);
}
static void stop_me(task_t *t) {
  if (sigsetjmp(back, 0) == 0) {
    stopped = pthread_self();
    tp_stop_hook = go_back;
    tp_store(&ready, true, release);
    for (;;)
      if (UNDER_TSAN) usleep(100);
  }
  tp_stop_hook = NULL;
  threadpool_return_copy(t, "stopped", 7);
}
static void stop_a_handler(void) {
  threadpool_t *pool = make(1);
  must_be(threadpool_register(
              pool, &(threadpool_handler){.name = "stop_me", .opcode = -1, .run = stop_me}) == 0);
  for (int i = 0; i < 20; i++) {
    uint64_t id = submit(pool, "stop_me");
    while (!tp_swap(&ready, false, acquire)) usleep(10);
    must_be(tp_stop_thread(stopped) == 0);
    result_t *r = threadpool_wait_result(pool, id, UINT32_MAX);
    must_be(r && r->status == 0 && memcmp(r->data, "stopped", 7) == 0);
    threadpool_result_free(r);
    must_be(tp_stop_thread(stopped) == 0); /* without a hook nothing happens */
    submit_echo_and_fetch(pool);
  }
  int sig = tp_load(&tp_stop_signal, relaxed);
  struct sigaction now;
  must_be(sigaction(sig, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO);
  must_be(threadpool_shutdown(pool) == 0);
  must_be(sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
  exit(0);
}
static void take_the_signal(void) {
  for (int sig = SIGRTMIN; sig < SIGRTMIN + 20; sig++)
    signal(sig, count); /* all that we might take */
  threadpool_t *pool = make(1);
  must_be(tp_load(&tp_stop_signal, relaxed) == SIGRTMIN + 20);
  for (int sig = SIGRTMIN; sig < SIGRTMAX; sig++) signal(sig, count);
  must_be(threadpool_shutdown(pool) == 0);
  pool = make(1);
  submit_echo_and_fetch(pool);
  exit(17);
}
static void send_it_from_outside(void) { /* as without us */
  make(1);
  raise(tp_load(&tp_stop_signal, relaxed));
}
static void one_thread_can_be_stopped(void **state) {
  (void)state;
  again_and_again(stop_a_handler, 0);
  again_and_again(take_the_signal, 17);
  assert_true(child(send_it_from_outside) >= 1000 + SIGRTMIN);
}

/* --- fork */

static threadpool_t *parents;
static symbol_table_t *symbols;
static uint64_t known_id;
static result_t *fetched, *other_fetched;
static char region[16];

static void says_forked(void) {
  must_be(strstr(threadpool_last_error(), "was forked") &&
          strstr(threadpool_last_error(), "make a pool of its own"));
}

static void every_function_says_so(void) {
  uint64_t id = 1;
  result_t *r;
  threadpool_counters counters;
  must_be(threadpool_submit(parents, "{\"op\": \"echo\"}") == 0);
  says_forked();
  threadpool_request q = {.json = "{\"op\": \"echo\"}"};
  must_be(threadpool_submit_batch(parents, &q, 1, &id) == 0 && id == 0);
  r = threadpool_poll_result(parents, known_id);
  must_be(r && r->status == ERR_FORKED && strstr(r->error_msg, "was forked"));
  threadpool_result_free(r);
  r = threadpool_wait_result(parents, known_id, UINT32_MAX);
  must_be(r && r->status == ERR_FORKED);
  threadpool_result_free(r);
  must_be(threadpool_completions(parents, &r, 1) == 0);
  says_forked();
  must_be(threadpool_event_fd(parents) == ERR_FORKED);
  must_be(threadpool_cancel(parents, known_id) == ERR_FORKED);
  must_be(threadpool_detach(parents, known_id) == ERR_FORKED);
  must_be(threadpool_status(parents, known_id) == ERR_FORKED);
  must_be(threadpool_register(parents, &(threadpool_handler){
                                           .name = "x", .opcode = -1, .run = spin}) == ERR_FORKED);
  must_be(threadpool_symbols(parents) == NULL);
  must_be(symbol_register(symbols, "other", region, sizeof region) == ERR_FORKED);
  must_be(symbol_unregister(symbols, "region") == ERR_FORKED);
  must_be(symbol_resolve(symbols, "region", NULL) == NULL);
  must_be(threadpool_call(parents, nothing, NULL) == ERR_FORKED);
  must_be(threadpool_broadcast(parents, nothing, NULL) == ERR_FORKED);
  must_be(threadpool_stats(parents, -1, &counters) == ERR_FORKED);
  must_be(threadpool_workers(parents) == 0);
  must_be(threadpool_current() == NULL);
  must_be(threadpool_shutdown(parents) == ERR_FORKED);
  says_forked();
  must_be(threadpool_shutdown_within(parents, -1) == ERR_FORKED);
  threadpool_result_free(fetched);
  threadpool_result_free(other_fetched);
}

#if !SANITIZED
/* With a crash: so its signal handlers are there, and a thread that takes the place of another. */
static void *volatile nowhere;
__attribute__((no_sanitize("undefined"))) static void crash(task_t *t) {
  (void)t;
  *(volatile int *)nowhere = 1;
}
#endif

static void a_pool_of_its_own(void) {
  threadpool_t *pool = make(2);
  must_be(pool != NULL);
  submit_echo_and_fetch(pool);
#if !SANITIZED
  must_be(threadpool_register(
              pool, &(threadpool_handler){.name = "crash", .opcode = -1, .run = crash}) == 0);
  result_t *r = threadpool_wait_result(pool, submit(pool, "crash"), UINT32_MAX);
  must_be(r && r->status == ERR_HANDLER_CRASH);
  threadpool_result_free(r);
#endif
  must_be(threadpool_shutdown(pool) == 0);
}

static void in_the_child(bool own, bool by_exit) {
  leaks_do_not_count = true;
  if (SANITIZED && !own) { /* without the heap */
    must_be(threadpool_submit(parents, "{}") == 0);
    says_forked();
    must_be(threadpool_shutdown(parents) == ERR_FORKED);
    _exit(0);
  }
  every_function_says_so();
  if (UNDER_TSAN) _exit(0); /* it knows no threads after a fork beside threads */
  if (own) a_pool_of_its_own();
  if (own && by_exit) fill(make(2));
  if (by_exit) exit(0);
  _exit(0);
}

static void open_parents(void) {
  parents = make(2);
  symbols = threadpool_symbols(parents);
  must_be(symbol_register(symbols, "region", region, sizeof region) == 0);
  known_id = submit(parents, "wait_for_ever");
  fetched = threadpool_wait_result(parents, submit(parents, "echo"), UINT32_MAX);
  other_fetched = threadpool_wait_result(
      parents, threadpool_submit(parents, "{\"op\": \"echo\", \"args\": {\"text\": \"x\"}}"),
      UINT32_MAX);
}
static void close_parents(void) {
  threadpool_result_free(fetched);
  threadpool_result_free(other_fetched);
  assert_int_equal(threadpool_shutdown_within(parents, -1), 0);
}

static int fork_and_look(bool own, bool by_exit) {
  fflush(NULL);
  if (SANITIZED && own) test_wait(test_all_parked(parents));
  pid_t pid = fork();
  if (pid == 0) in_the_child(own, by_exit);
  return outcome_of(pid);
}

static void a_child_is_told_that_the_pool_is_not_its(void **state) {
  (void)state;
  open_parents();
  for (int i = 0; i < 4 * runs(); i++) assert_int_equal(fork_and_look(i % 2, i / 2 % 2), 0);
  submit_echo_and_fetch(parents); /* the parent has not noticed */
  close_parents();
}

static _Atomic bool over;
static void *hammer(void *arg) {
  (void)arg;
  while (!tp_load(&over, relaxed)) {
    uint64_t id = threadpool_submit(parents, "{\"op\": \"echo\", \"args\": {\"text\": \"x\"}}");
    threadpool_result_free(threadpool_wait_result(parents, id, UINT32_MAX));
    symbol_register(symbols, "hammered", region, sizeof region);
    symbol_unregister(symbols, "hammered");
  }
  return NULL;
}
static void *open_and_close(void *arg) {
  (void)arg;
  while (!tp_load(&over, relaxed)) {
    threadpool_t *pool = make(1);
    must_be(threadpool_shutdown(pool) == 0);
  }
  return NULL;
}
/* Whatever lock another thread has just then, no child waits for it. */
static void forks_while_the_pool_is_hammered(void **state) {
  (void)state;
  enum { THREADS = 4 };
  pthread_t threads[THREADS + 1];
  open_parents();
  tp_store(&over, false, relaxed);
  for (int i = 0; i < THREADS; i++) threads[i] = thread_of(hammer, NULL);
  threads[THREADS] = thread_of(open_and_close, NULL);
  for (int i = 0; i < (SANITIZED ? 10 : 10 * runs()); i++)
    assert_int_equal(fork_and_look(!SANITIZED, !SANITIZED && i % 2), 0);
  tp_store(&over, true, relaxed);
  for (int i = 0; i <= THREADS; i++) pthread_join(threads[i], NULL);
  close_parents();
}

/* On a worker, in a handler: what the child does there */
enum { EXITS, EXITS_FAST, EXECS, MAKES_A_POOL, COMES_BACK, EMITS, WAYS };
static _Atomic int way;

static void fork_there(task_t *t) {
  fflush(NULL);
  if (SANITIZED) usleep(2000); /* the others are idle then */
  pid_t pid = fork();
  if (pid == 0) {
    leaks_do_not_count = true;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    must_be(!sigismember(&mask, SIGTERM) && !sigismember(&mask, SIGINT));
    every_function_says_so();
    switch (tp_load(&way, relaxed)) {
    case EXITS: exit(40 + EXITS);
    case EXITS_FAST: _exit(40 + EXITS_FAST);
    case EXECS: execl("/bin/sh", "sh", "-c", "exit 42", (char *)NULL); _exit(1);
    case MAKES_A_POOL:
      if (!UNDER_TSAN) a_pool_of_its_own();
      exit(40 + MAKES_A_POOL);
    case COMES_BACK: fclose(stderr); return;
    default:
      must_be(threadpool_emit(t, "x", 1) == ERR_FORKED);
      must_be(threadpool_sleep(t, 1) == THREADPOOL_READY);
      exit(40 + EMITS);
    }
  }
  int outcome = outcome_of(pid);
  threadpool_return_copy(t, &outcome, sizeof outcome);
}

static void forks_in_a_handler(void **state) {
  (void)state;
  for (int blocking = 0; blocking < 2; blocking++) {
    open_parents();
    assert_int_equal(threadpool_register(parents, &(threadpool_handler){.name = "fork",
                                                                        .opcode = -1,
                                                                        .run = fork_there,
                                                                        .blocking = blocking}),
                     0);
    for (int i = 0; i < WAYS * runs(); i++) {
      tp_store(&way, i % WAYS, relaxed);
      result_t *r = threadpool_wait_result(parents, submit(parents, "fork"), UINT32_MAX);
      assert_true(r && r->status == 0 && r->data_size == sizeof(int));
      assert_int_equal(*(int *)r->data, i % WAYS == COMES_BACK ? EXIT_FAILURE : 40 + i % WAYS);
      threadpool_result_free(r);
    }
    close_parents();
  }
}

/* A child's child, and one that makes a pool although its parent had none. */
static void fork_again(void) {
  if (UNDER_TSAN) exit(19);
  open_parents();
  test_wait(test_all_parked(parents));
  pid_t pid = fork();
  if (pid == 0) {
    leaks_do_not_count = true;
    open_parents();
    test_wait(test_all_parked(parents));
    pid_t second = fork();
    if (second == 0) in_the_child(true, true);
    must_be(outcome_of(second) == 0);
    submit_echo_and_fetch(parents);
    exit(18);
  }
  must_be(outcome_of(pid) == 18);
  submit_echo_and_fetch(parents);
  exit(19);
}
static void generations(void **state) {
  (void)state;
  again_and_again(fork_again, 19);
}

/* --- shutdown */

static void shutdown_within_some_time(void **state) {
  (void)state;
  for (int i = 0; i < runs(); i++) {
    threadpool_t *pool =
        test_pool((threadpool_options){.workers = 2, .drain_ms = 3600000}); /* an hour */
    assert_true(threadpool_submit(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 3600000}}") != 0);
    assert_int_equal(threadpool_shutdown_within(pool, -2), ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(threadpool_last_error(), "drain_ms"));
    assert_int_equal(threadpool_shutdown_within(pool, i % 3 - 1), 0);
    assert_int_equal(threadpool_shutdown_within(pool, 0), ERR_INVALID_ARGUMENT);
  }
  assert_int_equal(threadpool_shutdown_within(NULL, 0), ERR_INVALID_ARGUMENT);
  /* What is nearly done is waited for, though the pool's own option says not at all. */
  threadpool_t *pool = test_pool((threadpool_options){.workers = 2, .drain_ms = -1});
  uint64_t id = threadpool_submit(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 20}}");
  assert_true(id != 0);
  uint64_t before = tp_now_ns();
  assert_int_equal(threadpool_shutdown_within(pool, 3600000), 0);
  assert_true(tp_now_ns() - before >= 10 * TP_NS_PER_MS);
}

static pthread_barrier_t together;
static void *shut_down_together(void *pool) {
  pthread_barrier_wait(&together);
  return (void *)(intptr_t)threadpool_shutdown(pool);
}
static void two_threads_close_it(void **state) {
  (void)state;
  pthread_barrier_init(&together, NULL, 3);
  for (int i = 0; i < 10 * runs(); i++) {
    threadpool_t *pool = test_pool((threadpool_options){.workers = 1});
    assert_true(threadpool_submit(pool, "{\"op\": \"echo\"}") != 0);
    pthread_t t[3];
    void *code[3];
    int done = 0;
    for (int k = 0; k < 3; k++) t[k] = thread_of(shut_down_together, pool);
    for (int k = 0; k < 3; k++) {
      pthread_join(t[k], &code[k]);
      done += (intptr_t)code[k] == 0;
      assert_true((intptr_t)code[k] == 0 || (intptr_t)code[k] == ERR_INVALID_ARGUMENT);
    }
    assert_int_equal(done, 1);
    assert_int_equal(threadpool_shutdown(pool), ERR_INVALID_ARGUMENT);
  }
  pthread_barrier_destroy(&together);
}

/* --- dlclose */

static char library[4096];

static void load_and_unload(void) {
  void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  must_be(lib != NULL);
  threadpool_t *(*create)(const char *);
  uint64_t (*send)(threadpool_t *, const char *);
  result_t *(*wait_result)(threadpool_t *, uint64_t, uint32_t);
  *(void **)&create = dlsym(lib, "threadpool_create");
  *(void **)&send = dlsym(lib, "threadpool_submit");
  *(void **)&wait_result = dlsym(lib, "threadpool_wait_result");
  must_be(create && send && wait_result);
  threadpool_t *pool = create(NULL);
  must_be(pool != NULL);
  for (int i = 0; i < 100; i++) send(pool, "{\"op\": \"sleep\", \"args\": {\"ms\": 1}}");
  must_be(dlclose(lib) == 0);
  result_t *r = wait_result(pool, send(pool, "{\"op\": \"echo\"}"), UINT32_MAX);
  must_be(r != NULL);
  usleep(3000);
  exit(20);
}
static void the_library_stays_when_it_is_closed(void **state) {
  (void)state;
  ssize_t n = readlink("/proc/self/exe", library, sizeof library - 40);
  assert_true(n > 0);
  library[n] = '\0';
  for (int up = 0; up < 2; up++) *strrchr(library, '/') = '\0';
  strcat(library, "/libthreadpool.so");
  if (access(library, R_OK) != 0) skip(); /* of this build only the archive was made */
  again_and_again(load_and_unload, 20);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--forget") == 0) return forgetful_main();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exit_while_nothing_is_to_be_done),
      cmocka_unit_test(exit_with_a_thousand_tasks_in_flight),
      cmocka_unit_test(exit_without_handlers),
      cmocka_unit_test(a_pool_that_main_forgets),
      cmocka_unit_test(exit_from_a_handler),
      cmocka_unit_test(exit_in_calls_and_jobs),
      cmocka_unit_test(a_handler_that_does_not_end_is_parked),
      cmocka_unit_test(exit_beside_other_threads),
      cmocka_unit_test(exit_handlers_of_the_program),
      cmocka_unit_test(the_end_by_a_signal),
      cmocka_unit_test(signals_of_the_host_are_not_ours),
      cmocka_unit_test(one_thread_can_be_stopped),
      cmocka_unit_test(the_library_stays_when_it_is_closed),
      cmocka_unit_test(shutdown_within_some_time),
      cmocka_unit_test(two_threads_close_it),
      cmocka_unit_test(generations),
      cmocka_unit_test(a_child_is_told_that_the_pool_is_not_its),
      cmocka_unit_test(forks_while_the_pool_is_hammered),
      cmocka_unit_test(forks_in_a_handler),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
