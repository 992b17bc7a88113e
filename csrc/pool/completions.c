#include "pool/completions.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "pool/calls.h"

/* Before it blocks a waiter looks on for so long, if its last wait was as short: a round trip then needs no system
 * call. */
enum { SPIN_NS = 40000 };

threadpool_queue *tp_completions_new(void (*notify)(void *arg), void *arg) {
  threadpool_queue *q = tp_alloc(sizeof *q);
  if (!q) return NULL;
  tp_store(&q->event_fd, -1, relaxed); /* nobody else knows it yet */
  q->notify = notify;
  q->notify_arg = arg;
  q->spins = true;
  return q;
}

void tp_completions_free(threadpool_queue *q) {
  if (!q) return;
  result_t *batch[64];
  size_t n;
  while ((n = tp_completions_take(q, batch, 64)) > 0)
    for (size_t i = 0; i < n; i++) threadpool_result_free(batch[i]);
  int fd = tp_load(&q->event_fd, relaxed);
  if (fd >= 0) close(fd);
  tp_free(q);
}

static void write_event(int fd) {
  const uint64_t one = 1;
  if (fd >= 0 && write(fd, &one, sizeof one) < 0) { /* full: it is readable anyway */
  }
}

void tp_completions_push(threadpool_queue *q, tp_entry *e) {
  tp_entry *top = tp_load(&q->stack, relaxed); /* a guess, the CAS checks it */
  do e->next = top;
  while (!tp_cas_weak(&q->stack, &top, e, seq_cst)); /* N2: before the looks below */
  if (top) return;
  write_event(tp_load(&q->event_fd, seq_cst));
  if (tp_load(&q->latch, seq_cst) != TP_UNSET) tp_latch_open(&q->latch);
  if (q->notify) q->notify(q->notify_arg);
}

/* Lock held. An entry of the call goes to the program. False: nobody wants it. */
static bool hand_out(tp_entry *e) {
  task_t *call = e->call;
  if (!call) return true;
  tp_lock_acquire(&call->lock);
  bool wanted = !call->detached;
  if (e->final) {
    tp_call_hand_over(call);
  } else {
    if (!call->credited) call->waiting--;
    e->call = NULL;
    if (!call->credited) tp_call_tell_emitter(call);
  }
  tp_lock_release(&call->lock);
  return wanted;
}

/* N1: all of them, oldest first. */
static tp_entry *take_stack(threadpool_queue *q) {
  tp_entry *e = tp_swap(&q->stack, NULL, seq_cst),
           *ready = NULL; /* after the read; pairs with the push */
  for (tp_entry *next; e; e = next) {
    next = e->next;
    e->next = ready;
    ready = e;
    /* What is needed soon: all of it was last written by workers. */
    tp_prefetch(e);
    if (!e->call) continue;
    tp_prefetch(e->call);
    tp_prefetch(&e->call->text);
  }
  return ready;
}

size_t tp_completions_take(threadpool_queue *q, result_t **out, size_t n) {
  size_t got = 0;
  tp_entry *unwanted = NULL; /* freed without the lock: that calls the program's code */
  tp_lock_acquire(&q->lock);
  int fd = tp_load(&q->event_fd, seq_cst);
  uint64_t count;
  if (fd >= 0 && read(fd, &count, sizeof count) < 0) { /* it was not readable */
  }
  while (got < n) {
    if (!q->ready && !(q->ready = take_stack(q))) break;
    tp_entry *e = q->ready;
    q->ready = e->next;
    if (q->ready) tp_prefetch(q->ready->r.data);
    if (hand_out(e)) {
      out[got++] = &e->r;
    } else {
      e->next = unwanted;
      unwanted = e;
    }
  }
  tp_store(&q->more, q->ready != NULL, relaxed); /* a glance: who takes is who waits */
  /* What is left: of `ready`, or pushed before the read above, which took back what it had written. */
  if (q->ready || tp_load(&q->stack, seq_cst)) write_event(fd);
  tp_lock_release(&q->lock);
  for (tp_entry *next; unwanted; unwanted = next) {
    next = unwanted->next;
    threadpool_result_free(&unwanted->r);
  }
  return got;
}

int tp_completions_wait(threadpool_queue *q, uint64_t deadline_ns) {
  if (tp_completions_some(q)) return 1;
  uint64_t begin = tp_now_ns();
  while (q->spins && tp_now_ns() - begin < SPIN_NS) {
    for (int i = 0; i < 16; i++) tp_pause();
    if (tp_completions_some(q)) return 1;
  }
  q->spins = false;
  int outcome = -1;
  while (outcome < 0) {
    if (tp_latch_sleepy(&q->latch)) {
      if (tp_completions_some(q)) { /* N2: after sleepy */
        outcome = 1;
      } else if (tp_latch_sleep(&q->latch) &&
                 tp_futex_interrupted(&q->latch, TP_SLEEPING, deadline_ns)) {
        outcome = ERR_BUSY;
        break;
      }
    }
    tp_latch_reset(&q->latch);
    if (tp_completions_some(q))
      outcome = 1;
    else if (deadline_ns != UINT64_MAX && tp_now_ns() >= deadline_ns)
      outcome = 0;
  }
  tp_latch_reset(&q->latch);
  q->spins = outcome == 1 && tp_now_ns() - begin < 2 * SPIN_NS;
  return outcome;
}

int tp_completions_fd(threadpool_queue *q) {
  tp_lock_acquire(&q->lock);
  int fd = tp_load(&q->event_fd, relaxed); /* written under the lock */
  if (fd < 0) {
    fd = tp_fail_now() ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd >= 0) {
      tp_store(&q->event_fd, fd, seq_cst); /* N2: then the look; who pushed before did not see it */
      if (q->ready || tp_load(&q->stack, seq_cst)) write_event(fd);
    }
  }
  tp_lock_release(&q->lock);
  return fd >= 0 ? fd : tp_say(ERR_IO, "no descriptor to be had for the events of the queue");
}
