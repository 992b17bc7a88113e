#include "base/thread.h"

#include <signal.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/process.h"

_Atomic int tp_stop_signal;

/* Where the threads that this one starts may run; NULL: it is not pinned, they inherit. */
static _Thread_local const cpu_set_t *unpinned __attribute__((tls_model("initial-exec")));

/* Below the stack: a frame up to this size that overflows meets it, and not what lies behind. No memory, only addresses. */
enum { GUARD = 64 << 10 };

int tp_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg) {
  pthread_attr_t attr;
  if (tp_fail_now() || tp_load(&tp_exiting, relaxed) || /* a late one parks itself (P7) */
      pthread_attr_init(&attr) != 0)
    return ERR_MALLOC_FAILED;
  pthread_attr_setguardsize(&attr, GUARD); /* a wish */
  if (unpinned) pthread_attr_setaffinity_np(&attr, sizeof *unpinned, unpinned);
  sigset_t blocked, before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGSEGV);
  sigdelset(&blocked, SIGBUS);
  sigdelset(&blocked, SIGFPE);
  sigdelset(&blocked, SIGILL);
  int stop = tp_load(&tp_stop_signal, relaxed); /* chosen before the first thread starts */
  if (stop) sigdelset(&blocked, stop);
  /* A thread inherits the mask, so it is in force before the first instruction of fn. */
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int failed = pthread_create(thread, &attr, fn, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
  return failed ? ERR_MALLOC_FAILED : 0;
}

void tp_thread_pin(int cpu, const cpu_set_t *all) {
  unpinned = cpu < 0 ? NULL : all;
  cpu_set_t one;
  CPU_ZERO(&one);
  if (cpu >= 0) CPU_SET((unsigned)cpu, &one);
  pthread_setaffinity_np(pthread_self(), sizeof one, cpu < 0 ? all : &one);
}

void tp_thread_forked(void) {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, NULL);
  if (unpinned) pthread_setaffinity_np(pthread_self(), sizeof *unpinned, unpinned);
  unpinned = NULL;
}
