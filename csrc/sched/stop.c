#include "sched/stop.h"

#include <errno.h>
#include <gnu/libc-version.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/error.h"
#include "base/process.h"
#include "sync/lock.h"

/* Those who use signals of this kind begin at SIGRTMIN (timers of programs) or end at SIGRTMAX (valgrind): so the
 * middle, and there the first that nobody handles. */
enum { FROM_LOWEST = 12 };

/* Parking: looks at who is not yet parked, and from which on no reason not to be is taken (P8). A quarter of a second
 * in all if somebody cannot be parked; else as long as it takes to wake every thread once. */
enum { LOOKS = 250, LOOKS_QUICK = 50, LOOKS_PATIENT = 150 };

_Thread_local tp_stop_fn tp_stop_hook __attribute__((tls_model("initial-exec")));
static _Thread_local tp_stoppable *mine __attribute__((tls_model("initial-exec")));

static tp_lock lock;
static tp_stoppable *all;     /* under the lock */
static unsigned pools;        /* under the lock */
static bool hooked;           /* under the lock: our handler may still be called (X9) */
static _Atomic bool parking;  /* for good; set under the lock */
static _Atomic bool insisted; /* P8: have no regard */

/* --- where a thread must not be parked: what tears down the process needs the locks of these. Written before our
 * handler is installed. */

typedef struct code {
  uintptr_t begin, end;
} code;
enum { CODES = 4 };
static code runtime[CODES];
static int codes;

static bool is_in(code c, uintptr_t at) {
  return at >= c.begin && at < c.end;
}

static void on_stop(int sig, siginfo_t *info, void *context);

/* The C library, whoever has the heap, and the dynamic linker; unless it is all one with us. */
static int look_at_object(struct dl_phdr_info *object, size_t size, void *unused) {
  (void)size, (void)unused;
  for (int i = 0; i < object->dlpi_phnum && codes < CODES; i++) {
    const ElfW(Phdr) *p = &object->dlpi_phdr[i];
    if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
    code c = {object->dlpi_addr + p->p_vaddr, object->dlpi_addr + p->p_vaddr + p->p_memsz};
    bool theirs = is_in(c, (uintptr_t)gnu_get_libc_version) || /* nobody stands in front of that */
                  is_in(c, (uintptr_t)malloc) ||
                  (object->dlpi_addr && object->dlpi_addr == getauxval(AT_BASE));
    if (theirs && !is_in(c, (uintptr_t)on_stop)) runtime[codes++] = c;
  }
  return 0;
}

static uintptr_t place_of(const ucontext_t *c) {
#if defined(__x86_64__)
  return (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return c->uc_mcontext.pc;
#else
  (void)c;
  return 0;
#endif
}

/* What the C library asks the kernel for with a lock of the heap or of a stream in its hand. */
static bool is_under_a_lock(long number) {
  return number == SYS_write || number == SYS_writev || number == SYS_mmap ||
         number == SYS_munmap || number == SYS_mremap || number == SYS_mprotect ||
         number == SYS_madvise || number == SYS_brk;
}

/* Whether it waits in the kernel: a call that was interrupted, or is to be repeated. One that has come to its end just
 * then may be the heap's, which asks for memory. */
static bool is_waiting(const ucontext_t *context, code c) {
#if defined(__x86_64__)
  static const unsigned char call[] = {0x0f, 0x05};
  long result = context->uc_mcontext.gregs[REG_RAX], number = result;
#elif defined(__aarch64__)
  static const unsigned char call[] = {0x01, 0x00, 0x00, 0xd4};
  long result = (long)context->uc_mcontext.regs[0], number = (long)context->uc_mcontext.regs[8];
#else
  static const unsigned char call[] = {0};
  long result = 0, number = 0;
#endif
  uintptr_t at = place_of(context);
  if (at + sizeof call <= c.end && memcmp((void *)at, call, sizeof call) == 0)
    return !is_under_a_lock(number);
  return result == -EINTR && at >= c.begin + sizeof call &&
         memcmp((void *)(at - sizeof call), call, sizeof call) == 0;
}

/* P8. */
static bool may_park(const ucontext_t *context) {
  uintptr_t at = place_of(context);
  bool insist = tp_load(&insisted, relaxed), waits = false,
       runs = false; /* a hint, looked at again */
  for (int i = 0; i < codes; i++) {
    if (!is_in(runtime[i], at)) continue;
    waits = is_waiting(context, runtime[i]);
    runs = !waits;
  }
  return !runs && (!tp_critical || (insist && waits));
}

/* --- the signal */

static _Noreturn void park(tp_stoppable *me) {
  sigset_t every;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, NULL);
  tp_store(&me->parked, true, release); /* we touch nothing any more; pairs with look_around */
  for (;;) pause();
}

static void on_stop(int sig, siginfo_t *info, void *context) {
  int saved = errno;
  if (!mine || info->si_code != SI_TKILL || info->si_pid != getpid()) {
    if (mine) return; /* the process's: it is not blocked here, but not for us */
    signal(sig, SIG_DFL);
    raise(sig);
    return;
  }
  if (tp_unlikely(tp_load(&parking, relaxed))) { /* the signal came after it was set */
    tp_store(&mine->sent, false, relaxed);
    if (may_park(context)) park(mine);
  } else if (tp_stop_hook) {
    tp_stop_hook(info, context);
  }
  errno = saved;
}

void tp_stop_unblock(void *ucontext) {
  pthread_sigmask(SIG_SETMASK, &((ucontext_t *)ucontext)->uc_sigmask, NULL);
}

static bool is_ours(int sig) {
  struct sigaction now;
  return sig && sigaction(sig, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO &&
         now.sa_sigaction == on_stop;
}

static int choose(void) {
  for (int sig = SIGRTMIN + FROM_LOWEST; sig < SIGRTMAX; sig++) {
    struct sigaction now;
    if (sigaction(sig, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
        now.sa_handler == SIG_DFL)
      return sig;
  }
  return 0;
}

void tp_stop_install(void) {
  tp_lock_acquire(&lock);
  if (pools++ == 0 && !hooked) {
    if (!codes) dl_iterate_phdr(look_at_object, NULL);
    int sig = choose();
    struct sigaction ours = {.sa_sigaction = on_stop,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&ours.sa_mask);
    hooked = sig && sigaction(sig, &ours, NULL) == 0;
    tp_store(&tp_stop_signal, hooked ? sig : 0, relaxed); /* who starts a thread comes later */
  }
  tp_lock_release(&lock);
}

/* P9: lock held. */
static void unhook(void) {
  int sig = tp_load(&tp_stop_signal, relaxed); /* written under the lock */
  if (!hooked || !is_ours(sig)) return;
  signal(sig, SIG_DFL);
  hooked = false;
}

void tp_stop_uninstall(void) {
  tp_lock_acquire(&lock);
  if (--pools == 0 && !tp_load(&tp_exiting, seq_cst)) /* set before tp_stop_all takes the lock */
    unhook();
  tp_lock_release(&lock);
}

int tp_stop_thread(pthread_t thread) {
  int sig = tp_load(&tp_stop_signal, relaxed); /* constant while there are threads of ours */
  return sig && pthread_kill(thread, sig) == 0 ? 0 : ERR_INVALID_ARGUMENT;
}

/* --- the threads */

void tp_stop_enter(tp_stoppable *me) {
  me->id = pthread_self();
  me->before = NULL;
  tp_store(&me->sent, false, relaxed);
  tp_store(&me->parked, false, relaxed);
  mine = me;
  tp_lock_acquire(&lock);
  me->next = all;
  if (all) all->before = me;
  all = me;
  bool late = tp_load(&parking, relaxed);
  tp_lock_release(&lock);
  if (late) park(me); /* P7 */
}

void tp_stop_leave(tp_stoppable *me) {
  tp_lock_acquire(&lock);
  if (me->next) me->next->before = me->before;
  *(me->before ? &me->before->next : &all) = me->next;
  tp_lock_release(&lock);
  mine = NULL;
}

bool tp_stop_is_ours(void) {
  return mine != NULL;
}

/* Send the signal to who is not parked. False: all are. Not a lock that is waited for: we may be in a signal handler
 * of the host, on top of who holds it. */
static bool look_around(int sig) {
  if (!tp_lock_try(&lock)) return true;
  tp_store(&parking, true, relaxed); /* who comes later sees it with the lock held */
  bool left = false;
  for (tp_stoppable *t = all; t; t = t->next) {
    if (t == mine || tp_load(&t->parked, acquire)) continue;
    left = true;
    /* Signals of this kind queue up, so one at a time. In the list, so it has not ended. */
    if (!tp_swap(&t->sent, true, relaxed)) pthread_kill(t->id, sig);
  }
  tp_lock_release(&lock);
  return left;
}

void tp_stop_all(void) {
  int sig = tp_load(&tp_stop_signal, relaxed); /* constant while there are threads of ours */
  for (int i = 0; i < LOOKS && is_ours(sig) && look_around(sig); i++) {
    if (i == LOOKS_PATIENT) tp_store(&insisted, true, relaxed);
    nanosleep(&(struct timespec){.tv_nsec = i < LOOKS_QUICK ? 50000 : 1000000}, NULL);
  }
}

/* --- fork */

void tp_stop_fork_before(void) {
  tp_lock_acquire(&lock);
}

void tp_stop_fork_after(void) {
  tp_lock_release(&lock);
}

void tp_stop_fork_child(void) {
  unhook();
  pools = 0;
  all = mine = NULL;
  tp_stop_hook = NULL;
  tp_store(&parking, false, relaxed); /* we are alone */
  tp_store(&insisted, false, relaxed);
  tp_lock_release(&lock);
}
