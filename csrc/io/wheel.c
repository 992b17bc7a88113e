#include "io/wheel.h"

#include "base/assert.h"

/* Ticks that differ above this bit are out of the levels' range (W2). */
enum { EPOCH_SHIFT = TP_WHEEL_BITS * TP_WHEEL_LEVELS };

/* --- rings ------------------------------------------------------------------------------------ */

static bool ring_empty(const tp_timer_link *head) {
  return head->next == head;
}

static bool ring_single(const tp_timer_link *head) {
  return head->next == head->prev && !ring_empty(head);
}

static void ring_append(tp_timer_link *head, tp_timer_link *l) {
  l->next = head;
  l->prev = head->prev;
  head->prev->next = l;
  head->prev = l;
}

/* Move all of `from` to the end of `to`. */
static void ring_splice(tp_timer_link *to, tp_timer_link *from) {
  if (ring_empty(from)) return;
  from->next->prev = to->prev;
  to->prev->next = from->next;
  from->prev->next = to;
  to->prev = from->prev;
  tp_timer_list_init(from);
}

/* --- where a timer belongs -------------------------------------------------------------------- */

static unsigned digit(uint64_t tick, unsigned level) {
  return (unsigned)(tick >> (level * TP_WHEEL_BITS)) & (TP_WHEEL_SLOTS - 1);
}

static unsigned level_of(uint64_t elapsed, uint64_t tick) {
  uint64_t differ = elapsed ^ tick;
  return differ ? (63u - (unsigned)__builtin_clzll(differ)) / TP_WHEEL_BITS : 0;
}

/* The first tick of a slot: elapsed's digits above the level, the slot's, then zeroes. */
static uint64_t slot_start(const tp_wheel *w, unsigned level, unsigned slot) {
  unsigned shift = level * TP_WHEEL_BITS;
  uint64_t below = ((uint64_t)TP_WHEEL_SLOTS << shift) - 1;
  return (w->elapsed & ~below) | (uint64_t)slot << shift;
}

/* W2, for a tick >= elapsed. */
static void place(tp_wheel *w, tp_timer *t) {
  unsigned level = level_of(w->elapsed, t->tick);
  if (level >= TP_WHEEL_LEVELS) {
    ring_append(&w->far, &t->link);
    return;
  }
  unsigned slot = digit(t->tick, level);
  TP_ASSERT(t->tick == w->elapsed || slot > digit(w->elapsed, level), "W2");
  ring_append(&w->slot[level][slot], &t->link);
  w->occupied[level] |= 1ull << slot; /* W3 */
}

/* The lowest level that has timers, TP_WHEEL_LEVELS if none (W4). */
static unsigned first_level(const tp_wheel *w) {
  unsigned level = 0;
  while (level < TP_WHEEL_LEVELS && !w->occupied[level]) level++;
  return level;
}

/* --- overdue timers --------------------------------------------------------------------------- */

/* The two merged lists end with NULL and use `next` only; of equals, those of `a` come first. */
static tp_timer_link *merge(tp_timer_link *a, tp_timer_link *b) {
  tp_timer_link *first = NULL, **end = &first;
  while (a && b) {
    tp_timer_link **less = ((tp_timer *)b)->tick < ((tp_timer *)a)->tick ? &b : &a;
    *end = *less;
    end = &(*less)->next;
    *less = (*less)->next;
  }
  *end = a ? a : b;
  return first;
}

/* Stable merge sort from the bottom up: run[i] holds 2^i timers or none, older ones in higher runs. */
static void ring_sort(tp_timer_link *head) {
  if (ring_empty(head) || ring_single(head)) return;
  tp_timer_link *run[64] = {NULL}, *l = head->next;
  head->prev->next = NULL;
  while (l) {
    tp_timer_link *carry = l;
    l = l->next;
    carry->next = NULL;
    unsigned i = 0;
    for (; run[i]; i++) {
      carry = merge(run[i], carry);
      run[i] = NULL;
    }
    run[i] = carry;
  }
  tp_timer_link *sorted = NULL;
  for (unsigned i = 0; i < 64; i++) {
    if (run[i]) sorted = merge(run[i], sorted);
  }
  tp_timer_list_init(head);
  while (sorted) {
    l = sorted;
    sorted = l->next;
    ring_append(head, l);
  }
}

/* --- far timers ------------------------------------------------------------------------------- */

/* With all levels empty: go to the epoch (64^6 ticks) of the earliest far timers and place those of
 * them that are in it. False: none of them is due by `now` or in now's epoch. */
static bool enter_epoch(tp_wheel *w, uint64_t now) {
  if (now >> EPOCH_SHIFT == w->elapsed >> EPOCH_SHIFT) return false;
  uint64_t first = UINT64_MAX;
  for (tp_timer_link *l = w->far.next; l != &w->far; l = l->next) {
    uint64_t epoch = ((tp_timer *)l)->tick >> EPOCH_SHIFT;
    if (epoch < first) first = epoch;
  }
  if (first > now >> EPOCH_SHIFT) return false;
  w->elapsed = first << EPOCH_SHIFT;
  tp_timer_link all;
  tp_timer_list_init(&all);
  ring_splice(&all, &w->far);
  for (tp_timer_link *l = all.next, *next; l != &all; l = next) {
    next = l->next;
    place(w, (tp_timer *)l); /* those of later epochs go back to far, in the same order (W5) */
  }
  return true;
}

/* --- the wheel -------------------------------------------------------------------------------- */

void tp_wheel_init(tp_wheel *w, uint64_t now) {
  w->elapsed = now;
  for (unsigned level = 0; level < TP_WHEEL_LEVELS; level++) {
    w->occupied[level] = 0;
    for (unsigned slot = 0; slot < TP_WHEEL_SLOTS; slot++)
      tp_timer_list_init(&w->slot[level][slot]);
  }
  tp_timer_list_init(&w->overdue);
  tp_timer_list_init(&w->far);
}

void tp_wheel_insert(tp_wheel *w, tp_timer *t, uint64_t tick) {
  TP_ASSERT(!tp_timer_pending(t), "a timer is in one list at most");
  t->tick = tick;
  if (tick <= w->elapsed)
    ring_append(&w->overdue, &t->link);
  else
    place(w, t);
}

void tp_wheel_remove(tp_wheel *w, tp_timer *t) {
  TP_ASSERT(tp_timer_pending(t), "only a pending timer is removed");
  tp_timer_link *prev = t->link.prev, *next = t->link.next;
  prev->next = next;
  next->prev = prev;
  t->link.next = t->link.prev = NULL;
  if (prev != next) return;
  /* Nothing is left but the head. If that is one of the slots, its address tells which (W3). */
  uintptr_t offset = (uintptr_t)prev - (uintptr_t)&w->slot[0][0];
  if (offset >= sizeof w->slot) return;
  size_t index = offset / sizeof w->slot[0][0];
  w->occupied[index / TP_WHEEL_SLOTS] &= ~(1ull << (index % TP_WHEEL_SLOTS));
}

void tp_wheel_advance(tp_wheel *w, uint64_t now, tp_timer_link *out) {
  ring_sort(&w->overdue);
  ring_splice(out, &w->overdue); /* first: all others are later than elapsed */
  for (;;) {
    unsigned level = first_level(w);
    if (level == TP_WHEEL_LEVELS) {
      if (!enter_epoch(w, now)) break;
      continue;
    }
    unsigned slot = (unsigned)__builtin_ctzll(w->occupied[level]);
    uint64_t start = slot_start(w, level, slot);
    if (start > now) break;
    TP_ASSERT(start >= w->elapsed, "W1");
    w->elapsed = start;
    w->occupied[level] &= ~(1ull << slot);
    if (level == 0) {
      ring_splice(out, &w->slot[0][slot]); /* all of one tick, which is `start` */
      continue;
    }
    /* Its digit has been reached, so its timers now differ from elapsed in a lower one (W2). Those of
     * tick `start` go to level 0 and come out in the next round. */
    tp_timer_link *head = &w->slot[level][slot], *l = head->next;
    tp_timer_list_init(head);
    while (l != head) {
      tp_timer_link *next = l->next;
      place(w, (tp_timer *)l);
      l = next;
    }
  }
  /* No slot starts in (elapsed, now], so no timer's highest differing digit changes (W2). */
  if (now > w->elapsed) w->elapsed = now;
}

uint64_t tp_wheel_next(const tp_wheel *w) {
  if (!ring_empty(&w->overdue)) return w->elapsed;
  unsigned level = first_level(w);
  const tp_timer_link *head = &w->far;
  uint64_t start;
  if (level < TP_WHEEL_LEVELS) {
    unsigned slot = (unsigned)__builtin_ctzll(w->occupied[level]);
    head = &w->slot[level][slot];
    start = slot_start(w, level, slot);
  } else {
    if (ring_empty(head)) return TP_WHEEL_NEVER;
    start = ((w->elapsed >> EPOCH_SHIFT) + 1) << EPOCH_SHIFT;
  }
  return ring_single(head) ? ((const tp_timer *)head->next)->tick : start;
}
