#include "pool/crash.h"

#include <errno.h>
#include <signal.h>
#include <ucontext.h>

#include "sync/lock.h"

/* --- signals. The state here is global because signal handlers are. */

enum { SIGNALS = 4 };
static const int signals[SIGNALS] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static const char *const names[SIGNALS] = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"};

static tp_lock lock;
static unsigned pools;       /* under the lock */
static bool hooked[SIGNALS]; /* under the lock: our handler may still be called (X9) */
static struct sigaction
    before[SIGNALS]; /* written before ours is installed, constant while it is */

static int number_of(int sig) {
  int i = 0;
  while (i < SIGNALS - 1 && signals[i] != sig) i++;
  return i;
}

const char *tp_crash_name(int sig) {
  int i = number_of(sig);
  return signals[i] == sig ? names[i] : "unknown signal";
}

/* The default is to die of it. A fault that is ignored is not: the instruction would be tried for ever, so the kernel
 * does the same. Returning repeats the instruction, and with it the signal, from where it happened; one that was sent
 * has to be sent again. */
static void die_of(int sig, const siginfo_t *info) {
  struct sigaction deadly = {.sa_handler = SIG_DFL};
  sigemptyset(&deadly.sa_mask);
  sigaction(sig, &deadly, NULL);
  if (info->si_code <= 0) raise(sig);
}

/* As the kernel would have called it. */
static void pass_on(int sig, siginfo_t *info, void *context) {
  struct sigaction *next = &before[number_of(sig)];
  bool wants_info = next->sa_flags & SA_SIGINFO;
  if (!wants_info && next->sa_handler == SIG_IGN && info->si_code <= 0) return;
  if (!wants_info && (next->sa_handler == SIG_DFL || next->sa_handler == SIG_IGN)) {
    die_of(sig, info);
    return;
  }
  void (*with_info)(int, siginfo_t *, void *) = next->sa_sigaction;
  void (*without)(int) = next->sa_handler;
  sigset_t mask = next->sa_mask, old;
  if (!(next->sa_flags & SA_NODEFER)) sigaddset(&mask, sig);
  if (next->sa_flags & SA_RESETHAND) {
    next->sa_flags &= ~SA_SIGINFO;
    next->sa_handler = SIG_DFL;
  }
  pthread_sigmask(SIG_BLOCK, &mask, &old);
  if (wants_info)
    with_info(sig, info, context);
  else
    without(sig);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void on_fault(int sig, siginfo_t *info, void *context) {
  int saved = errno;
  if (info->si_code > 0 && tp_guard_may_unwind()) { /* X1: the kernel's own, at this instruction */
    tp_crash crash = {sig, info->si_code, info->si_addr};
    /* Whoever called us may have blocked the signal: a host in front of us, ThreadSanitizer. */
    pthread_sigmask(SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL);
    tp_guard_unwind(&crash);
    return; /* never: see there */
  }
  pass_on(sig, info, context);
  errno = saved;
}

static bool is_ours(const struct sigaction *a) {
  return a->sa_flags & SA_SIGINFO && a->sa_sigaction == on_fault;
}

int tp_crash_install(void) {
  tp_lock_acquire(&lock);
  for (int i = 0; pools == 0 && i < SIGNALS; i++) {
    if (hooked[i]) continue; /* X9 */
    struct sigaction ours = {.sa_sigaction = on_fault,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&ours.sa_mask);
    sigaction(signals[i], NULL, &before[i]); /* known before ours can be called */
    hooked[i] = sigaction(signals[i], &ours, NULL) == 0;
  }
  pools++;
  tp_lock_release(&lock);
  return 0;
}

/* Lock held. */
static void unhook(void) {
  for (int i = 0; i < SIGNALS; i++) {
    struct sigaction now;
    if (!hooked[i] || sigaction(signals[i], NULL, &now) != 0 || !is_ours(&now)) continue; /* X9 */
    sigaction(signals[i], &before[i], NULL);
    hooked[i] = false;
  }
}

void tp_crash_uninstall(void) {
  tp_lock_acquire(&lock);
  if (--pools == 0) unhook();
  tp_lock_release(&lock);
}

void tp_crash_fork_before(void) {
  tp_lock_acquire(&lock);
}

void tp_crash_fork_after(void) {
  tp_lock_release(&lock);
}

void tp_crash_fork_child(void) {
  if (pools > 0) unhook();
  pools = 0;
  tp_lock_release(&lock);
}
