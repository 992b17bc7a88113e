#include "api/process.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "base/process.h"
#include "pool/crash.h"
#include "sched/guard.h"
#include "sched/stop.h"
#include "sync/lock.h"

/* How long handlers have to come to their end once they see that they are cancelled (P5). Long enough for one that looks
 * now and then, short enough for who waits for a program to end. */
enum { GRACE_MS = 500 };

static _Atomic(threadpool_t *) handles;
static tp_lock lock;
static bool registered; /* under the lock: at_exit */
static bool forks_unseen;

static _Atomic bool from_inside;                                                      /* P5 */
static _Thread_local bool exits_here __attribute__((tls_model("initial-exec")));      /* P5 */
static _Thread_local threadpool_t *closes __attribute__((tls_model("initial-exec"))); /* P5 */

/* --- exit */

static bool is_open(threadpool_t *p) {
  /* Acquire: what was allocated for it is gone. */
  return !tp_forked(p->made_in) && !tp_load(&p->over, acquire);
}

/* One that exit has closed is ended by nobody else, and stays. Else somebody is just shutting it down, and may wait for
 * us. */
static bool is_busy(threadpool_t *p) {
  if (!p->ended_by_exit) return is_open(p) && p != closes && !tp_stop_is_ours();
  /* The task that calls exit does not end. */
  uint64_t own = tp_my_threads == &p->sched->threads;
  return tp_tasks_cancel(p->tasks) > own;
}

static void at_exit(void) {
  threadpool_t *all = tp_load(&handles, acquire);
  bool any = false;
  for (threadpool_t *p = all; p && !any; p = p->next) any = is_open(p);
  if (!any) return;
  tp_guard = NULL; /* from here there is no way back into a handler that crashed */
  if (tp_my_threads && tp_self()) tp_worker_leave(); /* a wish: others run what we cancel */
  exits_here = true;
  tp_store(&from_inside, tp_stop_is_ours(), relaxed); /* read after tp_exiting */
  tp_store(&tp_exiting, true, seq_cst);
  for (threadpool_t *p = all; p; p = p->next)
    if (is_open(p)) p->ended_by_exit = !tp_swap(&p->closing, true, seq_cst);
  uint64_t until = tp_now_ns() + GRACE_MS * TP_NS_PER_MS;
  /* A signal handler that calls exit on top of a function of ours: its locks are not to be had. */
  while (any && !tp_critical && tp_now_ns() < until) {
    any = false;
    for (threadpool_t *p = all; p; p = p->next) any = is_busy(p) || any;
    if (any) nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
  tp_stop_all();
}

void tp_process_hold(void) {
  if (tp_likely(!tp_load(&tp_exiting, acquire))) return; /* pairs with at_exit */
  if (!tp_load(&from_inside, relaxed) || exits_here || tp_stop_is_ours()) return;
  for (;;) pause();
}

/* --- fork */

static void before_fork(void) {
  tp_lock_acquire(&lock);
  tp_crash_fork_before();
  tp_stop_fork_before();
}

static void after_fork(void) {
  tp_stop_fork_after();
  tp_crash_fork_after();
  tp_lock_release(&lock);
}

/* P2. Nothing that belongs to a pool is touched, as it may be in any state, but the handles. */
static void in_child(void) {
  bool ours = tp_stop_is_ours();
  tp_add(&tp_generation, 1, relaxed); /* we are alone */
  tp_store(&tp_exiting, false, relaxed);
  for (threadpool_t *p = tp_load(&handles, acquire); p; p = p->next)
    if (!tp_load(&p->closing, relaxed)) tp_store(&p->closing, true, relaxed);
  tp_set_self(NULL);
  tp_guard = NULL;
  exits_here = false;
  closes = NULL;
  tp_threads_fork_child();
  tp_stop_fork_child();
  tp_crash_fork_child();
  tp_lock_release(&lock);
  tp_critical = 0;
  if (ours) tp_thread_forked();
}

/* When the library is loaded: so a fork is seen whatever another thread is just doing. */
__attribute__((constructor)) static void see_forks(void) {
  forks_unseen = pthread_atfork(before_fork, after_fork, in_child) != 0;
}

/* --- pools */

int tp_process_enter(void) {
  if (tp_load(&tp_exiting, relaxed))
    return tp_say(ERR_SHUTDOWN, "the process is exiting: no pool can be made any more");
  tp_lock_acquire(&lock);
  if (!registered) registered = atexit(at_exit) == 0;
  bool ok = registered && !forks_unseen;
  tp_lock_release(&lock);
  if (!ok) return tp_say(ERR_MALLOC_FAILED, "%s", tp_error_text(ERR_MALLOC_FAILED));
  tp_crash_install();
  tp_stop_install();
  return 0;
}

void tp_process_left(void) {
  tp_crash_uninstall();
  tp_stop_uninstall();
}

void tp_process_add(threadpool_t *pool) {
  pool->next = tp_load(&handles, relaxed);                     /* a guess, the CAS checks it */
  while (!tp_cas_weak(&handles, &pool->next, pool, release)) { /* pairs with at_exit */
  }
}

void tp_process_closing(threadpool_t *pool) {
  closes = pool;
}

void tp_process_closed(void) {
  closes = NULL;
}
