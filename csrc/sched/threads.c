#include "sched/threads.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "sched/stop.h"

#define IDLE_NS (10 * TP_NS_PER_S) /* an idle thread ends after this */

_Thread_local tp_threads *tp_my_threads __attribute__((tls_model("initial-exec")));

struct tp_thread {
  tp_threads *set;
  tp_thread *next; /* in `idle` or `ended` */
  tp_work *work;   /* what to do next; NULL: end */
  tp_latch given;  /* set when `work` has been given to an idle thread */
  pthread_t id;
  bool retired;    /* [itself] T5 */
  bool replaced;   /* [itself] T5: counted in retiring, not in count */
  stack_t signals; /* T6 */
};

static _Thread_local tp_thread *mine __attribute__((tls_model("initial-exec")));

/* --- stacks for signal handlers */

enum { GUARD_PAGE = 4096, SIGNAL_STACK = 64 << 10 }; /* the lowest page cannot be touched */

bool tp_signal_stack_new(stack_t *s) {
  long frame = sysconf(_SC_MINSIGSTKSZ); /* what the processor's registers need; large with AMX */
  size_t size = SIGNAL_STACK + (frame > 0 ? ((size_t)frame + 4095) / 4096 * 4096 : 0);
  char *p = tp_map(size);
  if (!p) return false;
  mprotect(p, GUARD_PAGE, PROT_NONE); /* a wish */
  *s = (stack_t){.ss_sp = p, .ss_size = size};
  return true;
}

void tp_signal_stack_free(stack_t *s) {
  tp_unmap(s->ss_sp, s->ss_size);
  s->ss_sp = NULL;
}

bool tp_signal_stack_lend(stack_t *s, stack_t *before) {
  if (sigaltstack(NULL, before) != 0 || before->ss_flags & SS_ONSTACK) return false;
  if (!(before->ss_flags & SS_DISABLE) && before->ss_size >= SIGNAL_STACK) return false;
  if (!s->ss_sp && !tp_signal_stack_new(s)) return false;
  return sigaltstack(s, NULL) == 0;
}

void tp_signal_stack_return(const stack_t *before) {
  sigaltstack(before, NULL);
}

void tp_threads_init(tp_threads *t, unsigned limit) {
  t->limit = limit;
}

/* Lock held. T3: remove it from the idle list, if it is still there. */
static bool take_out(tp_threads *t, tp_thread *me) {
  for (tp_thread **p = &t->idle; *p; p = &(*p)->next)
    if (*p == me) {
      *p = me->next;
      return true;
    }
  return false;
}

/* Idle: wait for work. NULL: end. */
static tp_work *wait_for_work(tp_thread *me) {
  tp_threads *t = me->set;
  tp_lock_acquire(&t->lock);
  tp_work *work = tp_chain_take(&t->queue);
  if (work || t->stopping) {
    tp_lock_release(&t->lock);
    return work;
  }
  tp_latch_reset(&me->given);
  me->next = t->idle;
  t->idle = me;
  tp_lock_release(&t->lock);

  if (tp_latch_sleepy(&me->given) && tp_latch_sleep(&me->given)) {
    tp_latch_block(&me->given, tp_now_ns() + IDLE_NS);
    if (!tp_latch_is_set(&me->given)) {
      tp_lock_acquire(&t->lock);
      bool mine = take_out(t, me);
      tp_lock_release(&t->lock);
      if (mine) return NULL;
      while (!tp_latch_is_set(&me->given)) tp_pause(); /* it was just being given work */
    }
  }
  return me->work;
}

/* Lock held. It is joined by the next one that is started, or at the end (T4). */
static void put_among_ended(tp_thread *me) {
  tp_threads *t = me->set;
  if (me->replaced)
    t->retiring--;
  else
    t->count--;
  me->next = t->ended;
  t->ended = me;
}

static int start_thread(tp_threads *t, tp_work *work);

/* T5: a retired thread has taken work that counted on it: a fresh one does it, in its place. Returns the work if there
 * is none: then it goes on after all. */
static tp_work *pass_on(tp_thread *me, tp_work *work) {
  tp_threads *t = me->set;
  tp_lock_acquire(&t->lock);
  t->retiring++;
  tp_lock_release(&t->lock);
  me->replaced = start_thread(t, work) == 0;
  tp_lock_acquire(&t->lock);
  if (me->replaced)
    put_among_ended(me);
  else
    t->retiring--;
  tp_lock_release(&t->lock);
  if (me->replaced) return NULL;
  me->retired = false;
  return work;
}

static void *thread_main(void *arg) {
  tp_thread *me = arg;
  tp_threads *t = me->set;
  me->id = pthread_self(); /* not by pthread_create, which may be later than our end */
  pthread_setname_np(me->id, "threadpool");
  tp_my_threads = t;
  mine = me;
  sigaltstack(&me->signals, NULL);
  tp_stoppable stoppable;
  tp_stop_enter(&stoppable);
  for (tp_work *work = me->work; work;) {
    work->run(NULL, work);
    if (tp_unlikely(!tp_my_threads)) tp_threads_came_back();
    work = me->retired ? NULL : wait_for_work(me);
    if (work) continue;
    tp_lock_acquire(&t->lock);
    if (!me->replaced)
      work = tp_chain_take(&t->queue); /* T2: it may have come since, and counted on us */
    if (!work) put_among_ended(me);
    tp_lock_release(&t->lock);
    if (work && me->retired) work = pass_on(me, work);
  }
  tp_stop_leave(&stoppable); /* first: its handler needs the stack */
  const stack_t none = {.ss_flags = SS_DISABLE};
  sigaltstack(&none, NULL);
  tp_add(&t->gone, 1,
         seq_cst); /* after the last use of the lock; the record is freed after the join */
  tp_futex_wake(&t->gone, 1);
  return NULL;
}

/* Lock held, T3: hand `work` (NULL: the order to end) to the newest idle thread. */
static tp_thread *pick_idle(tp_threads *t, tp_work *work) {
  tp_thread *th = t->idle;
  if (!th) return NULL;
  t->idle = th->next;
  th->work = work;
  return th;
}

/* T4: those that have ended by themselves. */
static void join_ended(tp_threads *t) {
  tp_lock_acquire(&t->lock);
  tp_thread *th = t->ended;
  t->ended = NULL;
  tp_lock_release(&t->lock);
  for (tp_thread *next; th; th = next) {
    next = th->next;
    pthread_join(th->id, NULL);
    tp_signal_stack_free(&th->signals);
    tp_free(th);
  }
}

static int start_thread(tp_threads *t, tp_work *work) {
  join_ended(t);
  tp_thread *th = tp_alloc(sizeof *th);
  if (!th) return ERR_MALLOC_FAILED;
  th->set = t;
  th->work = work;
  pthread_t id;
  int error = tp_signal_stack_new(&th->signals) ? 0 : ERR_MALLOC_FAILED;
  if (!error) error = tp_thread_start(&id, thread_main, th);
  if (!error) return 0;
  tp_signal_stack_free(&th->signals);
  tp_free(th);
  return error;
}

int tp_threads_run(tp_threads *t, tp_work *work, tp_thread_use use) {
  bool seat = use == TP_THREAD_SEAT;
  tp_lock_acquire(&t->lock);
  if (t->stopping && use != TP_THREAD_QUEUE) {
    tp_lock_release(&t->lock);
    return ERR_SHUTDOWN;
  }
  tp_thread *idle = pick_idle(t, work);
  bool start = !idle && t->count < t->limit;
  if (start) t->count++;
  if (seat && (idle || start)) t->seated++;
  if (!idle && !start && use == TP_THREAD_QUEUE) tp_chain_append(&t->queue, work);
  tp_lock_release(&t->lock);
  if (idle) {
    tp_latch_open(&idle->given);
    return 0;
  }
  if (!start) return use == TP_THREAD_QUEUE ? 0 : ERR_QUEUE_FULL;

  int error = start_thread(t, work);
  if (!error) return 0;
  tp_lock_acquire(&t->lock);
  t->count--;
  if (seat) t->seated--;
  if (use == TP_THREAD_QUEUE) {
    idle = pick_idle(t, work); /* one may have come back meanwhile */
    if (idle)
      error = 0;
    else if (t->count > t->seated)
      tp_chain_append(&t->queue, work), error = 0; /* T2 */
  }
  tp_lock_release(&t->lock);
  if (idle) tp_latch_open(&idle->given);
  return error;
}

void tp_threads_retire(void) {
  if (mine) mine->retired = true;
}

int tp_threads_replace(tp_threads *t, tp_work *seat) {
  tp_lock_acquire(&t->lock);
  bool stopping = t->stopping;
  if (!stopping) t->retiring++; /* and the fresh one takes over our place in count and seated */
  tp_lock_release(&t->lock);
  if (stopping) return ERR_SHUTDOWN;
  int error = start_thread(t, seat);
  if (!error) {
    mine->retired = mine->replaced = true;
    return 0;
  }
  tp_lock_acquire(&t->lock);
  t->retiring--;
  tp_lock_release(&t->lock);
  return error;
}

void tp_threads_unseat(tp_threads *t) {
  tp_lock_acquire(&t->lock);
  t->seated--;
  tp_lock_release(&t->lock);
}

void tp_threads_stop(tp_threads *t) {
  for (;;) {
    uint32_t gone = tp_load(&t->gone, seq_cst);
    tp_lock_acquire(&t->lock);
    t->stopping = true;
    tp_thread *idle = pick_idle(t, NULL);
    unsigned count = t->count + t->retiring;
    tp_lock_release(&t->lock);
    if (idle)
      tp_latch_open(&idle->given);
    else if (count == 0)
      break;
    else
      tp_futex_wait(&t->gone, gone);
  }
  join_ended(t);
}

void tp_threads_fork_child(void) {
  tp_my_threads = NULL;
  mine = NULL;
}

void tp_threads_came_back(void) {
  static const char text[] =
      "threadpool: a child that was forked in a handler came back from it; it must end, or exec\n";
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) { /* nobody to tell */
  }
  _exit(EXIT_FAILURE);
}
