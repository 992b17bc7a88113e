#include "io/reactor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/thread.h"
#include "sched/stop.h"
#include "sync/lock.h"

enum { EVENTS_AT_ONCE = 64 };

/* NEW: no thread and no descriptors yet. STOPPING: the thread is asked to end. STOPPED: there is none
 * any more, or never was; put by the thread as its last act. */
enum { NEW, RUNNING, STOPPING, STOPPED };

/* The eventfd's name among the events; no watch has it, for its descriptor would be -1. */
#define WAKE_TOKEN UINT64_MAX

/* What sleep_tick is while the thread is awake: no deadline is earlier. */
#define AWAKE 0

/* The two values of `calls` that are no calls; only their addresses count. */
static tp_reactor_call asleep_mark, closed_mark;
#define ASLEEP (&asleep_mark)
#define CLOSED (&closed_mark)

/* Indexed by descriptor: small numbers, of which the kernel gives out the least first. */
typedef struct watch_slot {
  tp_watch *watch;     /* NULL: not watched */
  uint32_t generation; /* R7: grows with every watch, rewatch and unwatch */
} watch_slot;

struct tp_reactor {
  /* Any thread, without the lock. */
  _Atomic(tp_reactor_call *) calls; /* R2, R8 */
  _Atomic uint64_t wakes;
  _Atomic uint64_t turns; /* written by the thread */

  TP_ALIGNED tp_lock lock; /* R1: guards the rest */
  _Atomic uint32_t state;  /* written with the lock held; read without it by post and inside */
  uint64_t sleep_tick;     /* R3 */
  const void *running;     /* R4: the timer or watch whose callback runs */
  uint32_t waiters;        /* for the end of that callback */
  _Atomic uint32_t ended; /* futex of the waiters: grows with the end of a callback they wait for */
  pthread_t thread;
  int epoll, event; /* constant from RUNNING on */
  watch_slot *slot;
  size_t slots;
  tp_timer_link due; /* R5: to be fired, pending until taken out */
  tp_wheel wheel;
};

static void lock(tp_reactor *r) {
  tp_lock_acquire(&r->lock);
}

static void unlock(tp_reactor *r) {
  tp_lock_release(&r->lock);
}

/* [lock held] Relaxed: the lock orders it. */
static uint32_t state_of(tp_reactor *r) {
  return tp_load(&r->state, relaxed);
}

/* --- waking ----------------------------------------------------------------------------------- */

/* [lock held] True: the caller has claimed the wake-up and must call wake() (R2). Relaxed: nothing but
 * the right to wake passes through the word here, and what the thread is to find is under the lock. */
static bool claim(tp_reactor *r) {
  tp_reactor_call *was = ASLEEP;
  r->sleep_tick = AWAKE;
  return tp_cas(&r->calls, &was, NULL, relaxed);
}

/* Edge-triggered in the epoll set: each write is one event, and nobody has to read the counter, which
 * would take 2^64 writes to be full. */
static void wake(tp_reactor *r) {
  uint64_t one = 1;
  tp_add(&r->wakes, 1, relaxed); /* a statistic */
  while (write(r->event, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* [thread] How long to block in epoll_wait. If it is not 0, ASLEEP has been put. */
static int fall_asleep(tp_reactor *r) {
  int timeout = -1;
  lock(r);
  uint64_t next = tp_wheel_next(&r->wheel);
  if (next != TP_WHEEL_NEVER) {
    /* In whole ticks this is rounded up: clock ticks begin at or before now (R6). */
    uint64_t now = tp_now_ns() / TP_NS_PER_MS;
    uint64_t left = next > now ? next - now : 0;
    timeout = left < INT_MAX ? (int)left : INT_MAX;
  }
  if (state_of(r) != RUNNING) timeout = 0;
  if (timeout != 0) {
    /* R2, R3: with the lock held, so that a start comes before (and is in `next`) or finds ASLEEP.
     * Relaxed: a post is before or after it in the order of this one word. */
    tp_reactor_call *empty = NULL;
    if (tp_cas(&r->calls, &empty, ASLEEP, relaxed))
      r->sleep_tick = next;
    else
      timeout = 0; /* calls have come */
  }
  unlock(r);
  return timeout;
}

/* --- callbacks -------------------------------------------------------------------------------- */

/* [thread, lock held] R4: the callback has returned; its object may be gone. */
static void callback_ended(tp_reactor *r) {
  r->running = NULL;
  if (r->waiters) {
    tp_add(&r->ended, 1, relaxed); /* read by waiters with the lock held, and by the kernel */
    tp_futex_wake(&r->ended, INT_MAX);
  }
}

/* [lock held, released meanwhile] Wait until some callback has ended. `ended` is read before the lock
 * is released, so an end that comes in between makes the futex return at once. */
static void wait_for_end(tp_reactor *r) {
  uint32_t seen = tp_load(&r->ended, relaxed); /* changes with the lock held only */
  r->waiters++;
  unlock(r);
  tp_futex_wait(&r->ended, seen);
  lock(r);
  r->waiters--;
}

/* [thread] */
static void deliver(tp_reactor *r, const struct epoll_event *e) {
  if (e->data.u64 == WAKE_TOKEN) return;
  uint32_t fd = (uint32_t)e->data.u64, generation = (uint32_t)(e->data.u64 >> 32);
  lock(r);
  TP_ASSERT(fd < r->slots, "the table does not shrink");
  tp_watch *w = r->slot[fd].watch;
  if (w && r->slot[fd].generation == generation && state_of(r) == RUNNING) { /* R7 */
    void (*ready)(tp_watch *, uint32_t) = w->ready;
    r->running = w;
    unlock(r);
    ready(w, e->events);
    lock(r);
    callback_ended(r);
  }
  unlock(r);
}

/* [thread] Timers that the callbacks start are for the next turn, also those that are due: so
 * descriptors and calls have their turn too. */
static void fire_due(tp_reactor *r) {
  lock(r);
  tp_wheel_advance(&r->wheel, tp_now_ns() / TP_NS_PER_MS, &r->due); /* R6: rounded down */
  tp_timer *t;
  while (state_of(r) == RUNNING && (t = tp_timer_list_first(&r->due))) {
    tp_wheel_remove(&r->wheel, t); /* R5 */
    void (*fire)(tp_timer *) = t->fire;
    r->running = t;
    unlock(r);
    fire(t);
    lock(r);
    callback_ended(r);
  }
  unlock(r);
}

/* [thread] Take all calls, oldest first, and leave `left` behind. */
static tp_reactor_call *take_calls(tp_reactor *r, tp_reactor_call *left) {
  /* Acquire: pairs with the release in tp_reactor_post; all posts since the last taking are
   * read-modify-writes of this word, so the first one's release reaches here too. */
  tp_reactor_call *c = tp_swap(&r->calls, left, acquire), *first = NULL;
  while (c && c != ASLEEP) {
    tp_reactor_call *older = c->next;
    c->next = first;
    first = c;
    c = older;
  }
  return first;
}

/* [thread] */
static void run_calls(tp_reactor_call *c) {
  while (c) {
    tp_reactor_call *next = c->next; /* the call may be gone, or posted again, when it has run */
    c->run(c);
    c = next;
  }
}

static void *thread_main(void *arg) {
  tp_reactor *r = arg;
  pthread_setname_np(pthread_self(), "tp-reactor");
  tp_stoppable stoppable;
  tp_stop_enter(&stoppable);
  struct epoll_event ready[EVENTS_AT_ONCE];
  for (;;) {
    int timeout = fall_asleep(r);
    int n = epoll_wait(r->epoll, ready, EVENTS_AT_ONCE, timeout);
    tp_bump(&r->turns, 1);
    lock(r);
    r->sleep_tick = AWAKE;
    bool stop = state_of(r) != RUNNING;
    unlock(r);
    tp_reactor_call *calls = take_calls(r, stop ? CLOSED : NULL); /* R8 */
    for (int i = 0; i < n; i++) deliver(r, &ready[i]);
    run_calls(calls);
    if (stop) break;
    fire_due(r);
  }
  lock(r);
  /* Nobody is inside from here on, though the thread's id be reused. Release: as in ensure_running. */
  tp_store(&r->state, STOPPED, release);
  unlock(r);
  tp_stop_leave(&stoppable);
  return NULL;
}

/* --- life ------------------------------------------------------------------------------------- */

tp_reactor *tp_reactor_new(void) {
  tp_reactor *r = tp_alloc(sizeof *r);
  if (!r) return NULL;
  tp_timer_list_init(&r->due);
  tp_wheel_init(&r->wheel, tp_now_ns() / TP_NS_PER_MS);
  return r;
}

static int open_descriptors(tp_reactor *r) {
  r->epoll = tp_fail_now() ? -1 : epoll_create1(EPOLL_CLOEXEC);
  if (r->epoll < 0) return ERR_IO;
  r->event = tp_fail_now() ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (r->event < 0) {
    close(r->epoll);
    return ERR_IO;
  }
  struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.u64 = WAKE_TOKEN};
  if (!tp_fail_now() && epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->event, &e) == 0) return 0;
  close(r->event);
  close(r->epoll);
  return ERR_IO;
}

/* [lock held] 0: the thread runs. On failure everything is as before. */
static int ensure_running(tp_reactor *r) {
  uint32_t state = state_of(r);
  if (tp_likely(state == RUNNING)) return 0;
  if (state != NEW) return ERR_SHUTDOWN;
  int error = open_descriptors(r);
  if (error) return error;
  error = tp_thread_start(&r->thread, thread_main, r);
  if (error) {
    close(r->event);
    close(r->epoll);
    return error;
  }
  /* Release: pairs with the acquires in tp_reactor_post and tp_reactor_inside, which then use `event`
   * and `thread`. (The new thread reads them after it has taken the lock, which is held here.) */
  tp_store(&r->state, RUNNING, release);
  return 0;
}

void tp_reactor_stop(tp_reactor *r) {
  lock(r);
  TP_ASSERT(!tp_reactor_inside(r), "the reactor cannot end itself");
  uint32_t was = state_of(r);
  /* Release: whoever reads it without the lock acquires; see ensure_running. */
  if (was == NEW) tp_store(&r->state, STOPPED, release);
  if (was == RUNNING) tp_store(&r->state, STOPPING, release);
  bool claimed = was == RUNNING && claim(r);
  unlock(r);
  if (claimed) wake(r);
  if (was == RUNNING) pthread_join(r->thread, NULL);
}

void tp_reactor_free(tp_reactor *r) {
  if (!r) return;
  tp_reactor_stop(r);
  if (tp_load(&r->calls, relaxed) == CLOSED) { /* it had a thread; the join ordered this */
    close(r->event);
    close(r->epoll);
  }
  tp_free(r->slot);
  tp_free(r);
}

/* --- timers ----------------------------------------------------------------------------------- */

int tp_timer_start(tp_reactor *r, tp_timer *t, uint64_t deadline_ns, void (*fire)(tp_timer *)) {
  uint64_t tick = deadline_ns / TP_NS_PER_MS + (deadline_ns % TP_NS_PER_MS != 0); /* R6 */
  lock(r);
  int error = ensure_running(r);
  if (error) {
    unlock(r);
    return error;
  }
  if (tp_timer_pending(t)) tp_wheel_remove(&r->wheel, t);
  t->fire = fire;
  tp_wheel_insert(&r->wheel, t, tick);
  bool claimed = tick < r->sleep_tick && claim(r); /* R3 */
  unlock(r);
  if (claimed) wake(r);
  return 0;
}

bool tp_timer_stop(tp_reactor *r, tp_timer *t) {
  bool stopped = false;
  lock(r);
  for (;;) {
    if (tp_timer_pending(t)) {
      tp_wheel_remove(&r->wheel, t); /* R5 */
      stopped = true;
    }
    if (r->running != t || tp_reactor_inside(r)) break; /* R4 */
    wait_for_end(r);
  }
  unlock(r);
  return stopped;
}

/* --- descriptors ------------------------------------------------------------------------------ */

/* [lock held] Make slot[fd] exist. */
static int grow_table(tp_reactor *r, int fd) {
  if ((size_t)fd < r->slots) return 0;
  /* A number that is no descriptor may be large: it must not cost gigabytes to find out. */
  if (fcntl(fd, F_GETFD) < 0) return ERR_INVALID_ARGUMENT;
  size_t slots = r->slots ? r->slots : 64;
  while (slots <= (size_t)fd) slots *= 2;
  watch_slot *slot = tp_alloc(slots * sizeof *slot);
  if (!slot) return ERR_MALLOC_FAILED;
  if (r->slots) memcpy(slot, r->slot, r->slots * sizeof *slot);
  tp_free(r->slot);
  r->slot = slot;
  r->slots = slots;
  return 0;
}

/* [lock held] */
static bool is_watched(tp_reactor *r, const tp_watch *w) {
  return w->fd >= 0 && (size_t)w->fd < r->slots && r->slot[w->fd].watch == w;
}

/* [lock held] Tell the kernel; events from here on come with a new generation (R7). On failure nothing
 * has changed. */
static int control(tp_reactor *r, int operation, int fd, uint32_t events) {
  uint32_t generation = r->slot[fd].generation + 1;
  struct epoll_event e = {.events = events, .data.u64 = (uint64_t)generation << 32 | (uint32_t)fd};
  if (tp_fail_now()) return ERR_MALLOC_FAILED;
  if (epoll_ctl(r->epoll, operation, fd, &e) == 0) {
    r->slot[fd].generation = generation;
    return 0;
  }
  if (errno == ENOMEM || errno == ENOSPC) return ERR_MALLOC_FAILED;
  return errno == EBADF || errno == EPERM || errno == EINVAL || errno == EEXIST ||
                 errno == ENOENT || errno == ELOOP
             ? ERR_INVALID_ARGUMENT
             : ERR_IO;
}

int tp_reactor_watch(tp_reactor *r, tp_watch *w, int fd, uint32_t events,
                     void (*ready)(tp_watch *, uint32_t events)) {
  if (fd < 0 || (events & (EPOLLET | EPOLLEXCLUSIVE))) return ERR_INVALID_ARGUMENT;
  lock(r);
  int error = ensure_running(r);
  if (!error) error = grow_table(r, fd);
  if (!error && (r->slot[fd].watch || is_watched(r, w))) error = ERR_INVALID_ARGUMENT;
  if (!error) error = control(r, EPOLL_CTL_ADD, fd, events);
  if (!error) { /* an event that came already waits for the lock in deliver() */
    w->ready = ready;
    w->fd = fd;
    r->slot[fd].watch = w;
  }
  unlock(r);
  return error;
}

int tp_reactor_rewatch(tp_reactor *r, tp_watch *w, uint32_t events) {
  if (events & (EPOLLET | EPOLLEXCLUSIVE)) return ERR_INVALID_ARGUMENT;
  lock(r);
  int error = is_watched(r, w) ? ensure_running(r) : ERR_INVALID_ARGUMENT;
  if (!error) error = control(r, EPOLL_CTL_MOD, w->fd, events); /* tells again what is ready now */
  unlock(r);
  return error;
}

bool tp_reactor_unwatch(tp_reactor *r, tp_watch *w) {
  bool watched = false;
  lock(r);
  for (;;) {
    if (is_watched(r, w)) {
      /* Fails only if the descriptor is closed already, and then the kernel has forgotten it. */
      epoll_ctl(r->epoll, EPOLL_CTL_DEL, w->fd, NULL);
      r->slot[w->fd].watch = NULL;
      r->slot[w->fd].generation++; /* R7 */
      watched = true;
    }
    if (r->running != w || tp_reactor_inside(r)) break; /* R4 */
    wait_for_end(r);
  }
  unlock(r);
  return watched;
}

/* --- calls ------------------------------------------------------------------------------------ */

int tp_reactor_post(tp_reactor *r, tp_reactor_call *c) {
  /* Acquire: pairs with the release in ensure_running; `event` is there. */
  if (tp_unlikely(tp_load(&r->state, acquire) != RUNNING)) {
    lock(r);
    int error = ensure_running(r);
    unlock(r);
    if (error) return error;
  }
  tp_reactor_call *top = tp_load(&r->calls, relaxed); /* a guess, checked by the CAS */
  do {
    if (top == CLOSED) return ERR_SHUTDOWN; /* R8 */
    c->next = top;
    /* Release: c and what it stands for; pairs with the acquire in take_calls. */
  } while (!tp_cas_weak(&r->calls, &top, c, release));
  if (top == ASLEEP) wake(r); /* R2 */
  return 0;
}

/* --- questions -------------------------------------------------------------------------------- */

bool tp_reactor_inside(tp_reactor *r) {
  /* Acquire: pairs with the release in ensure_running; `thread` is there. */
  uint32_t state = tp_load(&r->state, acquire);
  return (state == RUNNING || state == STOPPING) && pthread_equal(r->thread, pthread_self());
}

tp_reactor_stats tp_reactor_get_stats(tp_reactor *r) {
  return (tp_reactor_stats){
      .wakes = tp_load(&r->wakes, relaxed),
      .turns = tp_load(&r->turns, relaxed),
      .asleep = tp_load(&r->calls, relaxed) == ASLEEP,
  };
}
