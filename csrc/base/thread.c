#include "base/thread.h"

#include <sched.h>
#include <signal.h>

#include "base/alloc.h"
#include "base/error.h"

int tp_thread_start(pthread_t *thread, const char *name, int cpu, void *(*fn)(void *), void *arg) {
  if (tp_fail_now()) return ERR_MALLOC_FAILED;
  sigset_t blocked, before;
  sigfillset(&blocked);
  sigdelset(&blocked, SIGSEGV);
  sigdelset(&blocked, SIGBUS);
  sigdelset(&blocked, SIGFPE);
  sigdelset(&blocked, SIGILL);
  /* A thread inherits the mask, so it is in force before the first instruction of fn. */
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int failed = pthread_create(thread, NULL, fn, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) return ERR_MALLOC_FAILED;
  pthread_setname_np(*thread, name);
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(*thread, sizeof set, &set); /* a wish: failing changes speed only */
  }
  return 0;
}
