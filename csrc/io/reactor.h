/* reactor.h - one thread that waits: for timers, for file descriptors, for calls from others.
 *
 * Depends on: io/wheel.h, sync/lock.h, base/. Knows nothing of tasks. Used by: io/, ops/, pool/.
 *
 * The thread ("tp-reactor"), its epoll and its eventfd come into being at the first timer, watch or
 * post. Callbacks run on it, one at a time, without any lock held; they may call everything here
 * but tp_reactor_stop and tp_reactor_free, and may free the object they were called with.
 *
 * Vocabulary. The thread is *asleep* from just before it blocks in epoll_wait until somebody claims
 * the wake-up or it has returned and takes the calls; it then is *awake*. An object is *pending*: a
 * timer in the wheel or in the list of those due, a watch in the table. The *running* object is the one
 * whose callback runs.
 *
 *   word `calls`, a Treiber stack and the sleep flag in one:
 *
 *     empty ---sleep (lock held)---> ASLEEP ---claim: a timer, a stop---> empty
 *       |                              |
 *       +----post----> a call <--post--+    the post that replaced ASLEEP has claimed the wake-up
 *                        |
 *                        +---the thread takes all---> empty, or CLOSED when it ends
 *
 * R1  One lock (`lock`, a word) guards the wheel, the list of timers due, the table of watches,
 *     `running`, `sleep_tick` and `state`. It is never held while a callback runs.
 * R2  Only the thread puts ASLEEP, with the lock held and the stack empty; whoever replaces it, and
 *     nobody else, writes the eventfd. So there is at most one write for each sleep, and none while the
 *     thread is awake: it looks at the wheel and the stack again before it sleeps.
 * R3  No timer is slept through: while ASLEEP stands, nothing in the wheel is due before sleep_tick,
 *     because a start with an earlier tick claims the wake-up in the critical section that inserts it.
 *     A start with a later one, and every stop, let the thread sleep. (It then may wake once for a
 *     timer that was stopped meanwhile.)
 * R4  A callback is chosen (taken out of the list, looked up in the table) and named in `running` in
 *     one critical section; `running` is cleared when it has returned. The object itself is not
 *     touched any more from the moment its callback is called.
 * R5  Whoever takes a timer out of its list with the lock held decides its fate: the thread fires it,
 *     or a stop returns true. Exactly one of them for each start, unless the reactor ends first.
 * R6  Never early: a deadline is rounded up to a tick, the clock is rounded down. At most 2 ms late
 *     when the machine is idle.
 * R7  An event carries the descriptor and the generation of its watch, never a pointer; it is
 *     delivered only if the table still has that generation. Events that the kernel had handed out when
 *     the watch was removed or changed come to nothing; a change makes the kernel tell anew what is
 *     ready, so nothing is lost, and a one-shot watch is called once for each time it was armed.
 * R8  A call that was accepted runs exactly once; calls run in the order in which they were posted.
 *     CLOSED stands in the word when no more are accepted.
 * R9  Idle means blocked in epoll_wait, without a timeout if the wheel is empty.
 *
 * Waiting and locks: tp_timer_stop and tp_reactor_unwatch may wait for the running callback. Do not
 * call them holding a lock which that callback takes. (The callback is recognised by its object's
 * address: this holds too for an object in memory that an earlier callback freed while it runs.)
 */
#ifndef TP_IO_REACTOR_H
#define TP_IO_REACTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/error.h"
#include "io/wheel.h"

typedef struct tp_reactor tp_reactor;
typedef struct tp_watch tp_watch;
typedef struct tp_reactor_call tp_reactor_call;

/* The caller's memory, as are tp_timer (wheel.h) and tp_reactor_call. Zeroed before its first use;
 * its fields belong to the reactor until the unwatch. */
struct tp_watch {
  void (*ready)(tp_watch *, uint32_t events);
  int fd;
};

struct tp_reactor_call {
  tp_reactor_call *next;          /* the reactor's */
  void (*run)(tp_reactor_call *); /* the caller's; it may free or post the call again */
};

/* [any] NULL: out of memory. Starts nothing and opens nothing. */
tp_reactor *tp_reactor_new(void);

/* [any but the reactor thread] End the thread and wait for it: the callback that runs is finished,
 * calls already accepted are run, and nothing else. From then on timers, watches and posts are
 * refused with ERR_SHUTDOWN; timers still pending never fire, and tp_timer_stop still tells true for
 * them. The first call waits; one beside it or after it does nothing. */
void tp_reactor_stop(tp_reactor *r);

/* [any but the reactor thread] Stop, then release. Nobody may use the reactor any more, nor does it
 * touch what is still pending: that memory is its owner's again. NULL is allowed. */
void tp_reactor_free(tp_reactor *r);

/* [any] Let fire(t) be called once the monotonic clock (tp_now_ns) has reached deadline_ns. A timer
 * that is pending is moved to the new deadline. Its memory must live until it fired or was stopped.
 * 0; or ERR_SHUTDOWN; or, from the first use only, ERR_MALLOC_FAILED (no thread) or ERR_IO (no
 * descriptors): the timer then is as it was and the next use tries again.
 *
 * Cost: the lock (one atomic operation to take it, one to release it, while nobody contends), and
 * O(1) within; no allocation, no clock, no system call. If the thread is asleep and this is the
 * earliest deadline, one write to the eventfd (about 1 us for the caller, R2). */
int tp_timer_start(tp_reactor *r, tp_timer *t, uint64_t deadline_ns, void (*fire)(tp_timer *));

/* [any] True: it was pending and will not fire. False: it has fired, or was never started. Either
 * way its callback does not run when this returns, so that the memory may be freed; if it is running
 * this waits for its end, unless called on the reactor thread (that is, from the callback itself). If
 * that callback starts its timer again, that start is taken back too, and the answer is true.
 *
 * Cost: the lock and O(1), never a write; a futex wait only if the callback is just running. */
bool tp_timer_stop(tp_reactor *r, tp_timer *t);

/* [any] Call ready(w, events) as long as fd is ready for `events` (EPOLLIN, EPOLLOUT, EPOLLPRI,
 * EPOLLRDHUP; EPOLLERR and EPOLLHUP are always told).
 *
 * Level-triggered, because libcurl's multi_socket interface wants to be told again when it has left
 * something unread, and changes what it wants by a modification. With EPOLLONESHOT the kernel
 * disarms the watch with its first event, until tp_reactor_rewatch: for those who await a descriptor
 * once and look at it later on another thread, where a level-triggered watch would call again and
 * again until they do. EPOLLET and EPOLLEXCLUSIVE are refused: nobody here needs them.
 *
 * One watch a descriptor; unwatch before the descriptor is closed. 0; ERR_INVALID_ARGUMENT: not a
 * descriptor, one that epoll cannot watch (a regular file), or already watched; ERR_MALLOC_FAILED;
 * ERR_IO; ERR_SHUTDOWN. Cost: the lock and epoll_ctl. */
int tp_reactor_watch(tp_reactor *r, tp_watch *w, int fd, uint32_t events,
                     void (*ready)(tp_watch *, uint32_t events));

/* [any] Change what is waited for, or arm a one-shot watch again. From its return on no callback begins
 * for what was waited for before (R7). 0, or the errors of tp_reactor_watch, of which
 * ERR_INVALID_ARGUMENT: not watched; the watch then is as it was. */
int tp_reactor_rewatch(tp_reactor *r, tp_watch *w, uint32_t events);

/* [any] Whether it was watched. When this returns its callback does not run, nor will it; as with
 * tp_timer_stop, on the reactor thread it does not wait. */
bool tp_reactor_unwatch(tp_reactor *r, tp_watch *w);

/* [any] Let c->run(c) be called on the reactor thread. 0, ERR_SHUTDOWN, or the errors of a first use.
 * Cost: one compare-and-swap, and a write to the eventfd if the thread is asleep (R2). */
int tp_reactor_post(tp_reactor *r, tp_reactor_call *c);

/* [any] Whether the caller is this reactor's thread. */
bool tp_reactor_inside(tp_reactor *r);

typedef struct tp_reactor_stats {
  uint64_t wakes; /* writes to the eventfd */
  uint64_t turns; /* returns from epoll_wait */
  bool asleep;
} tp_reactor_stats;

/* [any] Recent values. */
tp_reactor_stats tp_reactor_get_stats(tp_reactor *r);

#endif
