/* wheel.h - a hierarchical timer wheel: many deadlines, of which most never come to pass.
 *
 * A plain data structure for one thread at a time: it reads no clock, takes no lock, allocates
 * nothing. Time is counted in ticks (the reactor's are milliseconds) and comes in by
 * tp_wheel_advance. Depends on: base/. Used by: io/reactor.c.
 *
 * A tick is read as a number in base 64. Six levels of 64 slots, one level a digit, hold 64^6 ticks
 * (2.2 years of milliseconds); what is further away waits in one list, `far`.
 *
 *   level      5       4       3       2       1       0        elapsed = ... 0 0 0 1 7 40
 *   a slot   12.4 d   4.7 h   4.4 min  4.1 s   64 ms   1 ms     tick    = ... 0 0 0 1 9  3
 *                                                               differ first in digit 1:
 *                                                               level 1, slot 9
 *
 * W1  `elapsed` never goes back. A timer is handed out by the first advance whose `now` has reached
 *     its tick, never before.
 * W2  Where a timer is follows from elapsed and its tick alone: the level is the highest digit in
 *     which they differ, the slot is the tick's digit there, and it is larger than elapsed's (equal
 *     only for a timer on its way out). `far` is for those that differ above digit 5. Timers that
 *     were late when inserted (tick <= elapsed) are apart, in `overdue`.
 * W3  Bit s of occupied[l] is set if and only if slot s of level l has timers.
 * W4  So everything in a level comes before everything in the next level and in `far`, and in a level
 *     lower slots come first: the next thing to do is found by six looks at the bitmaps.
 * W5  By W2 all timers of one tick are in one list at any time; lists are appended to, and emptied
 *     from the front into lists where that tick was not yet. So equal ticks keep the order of
 *     insertion, without a number in the timer. `overdue` is sorted, stably, when handed out.
 *
 * Deadlines out of range are not put into the last slot that is in range, to be looked at again
 * there, as is often done: that would put two timers of one tick into two slots, and break W5.
 */
#ifndef TP_IO_WHEEL_H
#define TP_IO_WHEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TP_WHEEL_BITS = 6, TP_WHEEL_SLOTS = 1 << TP_WHEEL_BITS, TP_WHEEL_LEVELS = 6 };

#define TP_WHEEL_NEVER UINT64_MAX

/* A ring: its head is a link that belongs to no timer. */
typedef struct tp_timer_link {
  struct tp_timer_link *next, *prev; /* of a timer: NULL while it is in no list */
} tp_timer_link;

typedef struct tp_timer tp_timer;

/* Part of the caller's own structure, zeroed before its first use. In a list (pending) it must not
 * move. Copying one that is not pending is allowed. */
struct tp_timer {
  tp_timer_link link; /* first, so that a link is a timer */
  uint64_t tick;
  void (*fire)(tp_timer *); /* the reactor's; the wheel does not look at it */
};

typedef struct tp_wheel {
  uint64_t elapsed;                                    /* W1 */
  uint64_t occupied[TP_WHEEL_LEVELS];                  /* W3 */
  tp_timer_link slot[TP_WHEEL_LEVELS][TP_WHEEL_SLOTS]; /* W2 */
  tp_timer_link overdue;                               /* W2 */
  tp_timer_link far;                                   /* W2 */
} tp_wheel;

/* An empty wheel whose time is `now`. There is nothing to release. */
void tp_wheel_init(tp_wheel *w, uint64_t now);

/* O(1). The timer must not be pending. A tick that has passed is handed out by the next advance.
 * TP_WHEEL_NEVER is a tick like others, the last one. */
void tp_wheel_insert(tp_wheel *w, tp_timer *t, uint64_t tick);

/* O(1). The timer must be pending: in the wheel, or in a list that tp_wheel_advance has given out. */
void tp_wheel_remove(tp_wheel *w, tp_timer *t);

/* Append to `out` all timers whose tick is <= now, in the order of their ticks, those of one tick in
 * the order of their insertion. They stay pending until they are removed. A `now` before elapsed
 * counts as elapsed. Costs O(1) for a slot that is due, and O(1) for each timer that goes down a
 * level, of which there are at most five in its life; a jump over years costs no more. (Once in 2.2
 * years the whole of `far` is looked at.) */
void tp_wheel_advance(tp_wheel *w, uint64_t now, tp_timer_link *out);

/* O(levels). The tick at which advance next has something to do: never later than the earliest
 * timer's tick, and exactly that if the timer is in level 0 or alone in its slot; else the tick at
 * which its slot goes down a level. After an advance to that tick, it is larger than that tick.
 * elapsed if a timer is overdue; TP_WHEEL_NEVER if there is none. */
uint64_t tp_wheel_next(const tp_wheel *w);

static inline bool tp_timer_pending(const tp_timer *t) {
  return t->link.next != NULL;
}

static inline void tp_timer_list_init(tp_timer_link *list) {
  list->next = list->prev = list;
}

/* The first timer, which stays in the list; NULL if there is none. */
static inline tp_timer *tp_timer_list_first(tp_timer_link *list) {
  return list->next == list ? NULL : (tp_timer *)list->next;
}

#endif
