#include "sched/threads.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"

#define IDLE_NS (10 * TP_NS_PER_S) /* an idle thread ends after this */

_Thread_local tp_threads *tp_my_threads __attribute__((tls_model("initial-exec")));

struct tp_thread {
  tp_threads *set;
  tp_thread *next; /* in `idle` or `ended` */
  tp_work *work;   /* what to do next; NULL: end */
  tp_latch given;  /* set when `work` has been given to an idle thread */
  pthread_t id;
};

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

static void *thread_main(void *arg) {
  tp_thread *me = arg;
  tp_threads *t = me->set;
  me->id = pthread_self(); /* not by pthread_create, which may be later than our end */
  pthread_setname_np(me->id, "threadpool");
  tp_my_threads = t;
  for (tp_work *work = me->work; work;) {
    work->run(NULL, work);
    work = wait_for_work(me);
    if (work) continue;
    tp_lock_acquire(&t->lock);
    work = tp_chain_take(&t->queue); /* T2: it may have come since, and counted on us */
    if (!work) {
      t->count--;
      me->next = t->ended;
      t->ended = me;
    }
    tp_lock_release(&t->lock);
  }
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
  int error = tp_thread_start(&id, thread_main, th);
  if (error) tp_free(th);
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
    unsigned count = t->count;
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
