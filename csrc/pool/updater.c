#include "pool/updater.h"

#include "base/alloc.h"

typedef struct mailbox {
  TP_ALIGNED tp_lock lock;
  tp_letter *first, *last; /* bundles */
} mailbox;

/* U2. The one that begins at mailbox i is the i-th. */
typedef struct domain {
  tp_updaters *all;
  unsigned begin, end;
  bool alive; /* it has an updater */
  bool again; /* something came since it read its bounds */
  unsigned
      turn; /* [its updater] where a pass begins: none waits behind one that is filled again and again */
} domain;

struct tp_updaters {
  tp_tasks *tasks;
  tp_sched *sched;
  tp_open_fn open;
  unsigned count;  /* of mailboxes */
  unsigned *owner; /* U2: whose each is */
  domain *domains;
  mailbox *mailboxes;
  TP_ALIGNED tp_lock lock;             /* U2 */
  _Atomic unsigned updaters;           /* U2: alive; a hint for senders */
  TP_ALIGNED _Atomic unsigned turn;    /* mailbox of the next bundle, to spread them */
  TP_ALIGNED _Atomic unsigned bundles; /* that wait; a hint for splitting */
  _Atomic unsigned busy;               /* updaters that run just now; a hint for senders */
};

tp_updaters *tp_updaters_new(tp_tasks *tasks, tp_open_fn open) {
  tp_updaters *u = tp_alloc(sizeof *u);
  if (!u) return NULL;
  u->tasks = tasks;
  u->sched = tp_tasks_sched(tasks);
  u->open = open;
  u->count = 2 * u->sched->workers; /* each worker can have a domain that can still be split */
  u->owner = tp_alloc(u->count * sizeof *u->owner);
  u->domains = tp_alloc(u->count * sizeof *u->domains);
  u->mailboxes = tp_alloc(u->count * sizeof *u->mailboxes);
  if (!u->owner || !u->domains || !u->mailboxes) {
    tp_updaters_free(u);
    return NULL;
  }
  for (unsigned i = 0; i < u->count; i++) u->domains[i].all = u;
  u->domains[0].end = u->count;
  return u;
}

void tp_updaters_free(tp_updaters *u) {
  if (!u) return;
  tp_free(u->owner);
  tp_free(u->domains);
  tp_free(u->mailboxes);
  tp_free(u);
}

/* More waits than `updaters` will see to at once. */
static bool is_backlog(unsigned bundles, unsigned updaters) {
  return bundles >= 2 * (updaters ? updaters : 1);
}

bool tp_updaters_ready(const tp_updaters *u, bool alone, bool large) {
  /* Hints, all of them: a wrong answer changes who decodes. */
  if (alone && is_backlog(tp_load(&u->bundles, relaxed), tp_load(&u->updaters, relaxed)))
    return false;
  return tp_inactive_of(tp_load(&u->sched->sleep.counters, relaxed)) > 0 ||
         tp_load(&u->busy, relaxed) > 0 || (large && !alone);
}

/* U3 */
static tp_letter *take(mailbox *m) {
  tp_lock_acquire(&m->lock);
  tp_letter *bundle = m->first;
  if (bundle) m->first = bundle->behind;
  tp_lock_release(&m->lock);
  return bundle;
}

static void open_bundle(tp_updaters *u, tp_letter *letter) {
  tp_sub(&u->bundles, 1, relaxed); /* a hint */
  tp_worker *w = tp_self();
  for (tp_letter *next; letter; letter = next) {
    next = letter->next; /* it may be gone when it is open */
    u->open(letter);
    if (w) tp_bump(&w->count.decoded, 1);
  }
}

/* U2: the domains [begin, end) belong to the one that begins at `owner`. Lock held. */
static void give(tp_updaters *u, unsigned begin, unsigned end, unsigned owner) {
  for (unsigned i = begin; i < end; i++) u->owner[i] = owner;
}

static int start(domain *d);

/* Give the upper half away if more waits than the updaters there are will see to at once, and a worker may be had. */
static void split(domain *d) {
  tp_updaters *u = d->all;
  if (tp_load(&u->bundles, relaxed) < 2) return; /* a hint */
  tp_lock_acquire(&u->lock);
  unsigned middle = d->begin + (d->end - d->begin) / 2;
  unsigned updaters = tp_load(&u->updaters, relaxed); /* written under the lock */
  bool wanted = middle > d->begin && updaters < u->sched->workers &&
                is_backlog(tp_load(&u->bundles, relaxed), updaters); /* a hint */
  domain *half = &u->domains[middle];
  if (wanted) {
    half->begin = middle;
    half->end = d->end;
    half->alive = true;
    half->again = false;
    d->end = middle;
    give(u, half->begin, half->end, middle);
    tp_bump(&u->updaters, 1);
  }
  tp_lock_release(&u->lock);
  if (!wanted) return;
  tp_worker *w = tp_self();
  if (w) tp_bump(&w->count.splits, 1);
  if (start(half) == 0) return;
  tp_lock_acquire(&u->lock); /* no memory: it is ours again, and our next pass sees it */
  d->end = half->end;
  d->again = true;
  half->alive = false;
  give(u, half->begin, half->end, d->begin);
  tp_bump(&u->updaters, -1);
  tp_lock_release(&u->lock);
}

/* Open a bundle. False: there was nothing. */
static bool pass(domain *d) {
  tp_updaters *u = d->all;
  tp_lock_acquire(&u->lock);
  unsigned begin = d->begin, end = d->end;
  d->again = false;
  tp_lock_release(&u->lock);
  unsigned n = end - begin, first = d->turn++ % n;
  for (unsigned looked = 0; looked < n; looked++) {
    tp_letter *bundle = take(&u->mailboxes[begin + (first + looked) % n]);
    if (!bundle) continue;
    split(d);
    open_bundle(u, bundle);
    return true;
  }
  return false;
}

/* After a pass that found nothing. False: there may be something now. */
static bool retire(domain *d) {
  tp_updaters *u = d->all;
  tp_lock_acquire(&u->lock);
  bool over = !d->again;
  bool merged = over && d->begin > 0;
  if (over) {
    d->alive = false;
    tp_bump(&u->updaters, -1);
  }
  if (merged) {
    domain *left = &u->domains[u->owner[d->begin - 1]];
    left->end = d->end;
    give(u, d->begin, d->end, left->begin);
  }
  tp_lock_release(&u->lock);
  tp_worker *w = tp_self();
  if (merged && w) tp_bump(&w->count.merges, 1);
  return over;
}

static tp_poll run(tp_task *t, void *arg) {
  (void)t;
  domain *d = arg;
  tp_updaters *u = d->all;
  tp_add(&u->busy, 1, relaxed); /* a hint */
  /* One, and then what it has started gets its turn, while it is in this core's cache. */
  bool over = !pass(d) && retire(d);
  tp_sub(&u->busy, 1, relaxed);
  return over ? TP_READY : TP_YIELD;
}

static void read_to_the_end(domain *d) {
  do
    while (pass(d)) {
    }
  while (!retire(d));
}

static void ended(tp_task *t) {
  if (tp_task_code(t) == ERR_CANCELLED) read_to_the_end(t->arg); /* U4: it was not over */
}

static int start(domain *d) {
  const tp_spawn_spec spec = {.poll = run, .arg = d, .end = ended, .priority = TP_NORMAL};
  return tp_spawn(d->all->tasks, &spec, NULL);
}

/* Something came into a mailbox that was empty. */
static void attend(tp_updaters *u, unsigned i) {
  tp_lock_acquire(&u->lock);
  domain *d = &u->domains[u->owner[i]];
  bool had = d->alive;
  d->again = true;
  d->alive = true;
  tp_bump(&u->updaters, !had);
  tp_lock_release(&u->lock);
  if (!had && start(d) != 0) read_to_the_end(d);
}

void tp_updaters_send(tp_updaters *u, tp_letter *bundle) {
  unsigned i = tp_add(&u->turn, 1, relaxed) % u->count; /* only to spread them */
  mailbox *m = &u->mailboxes[i];
  bundle->behind = NULL;
  tp_add(&u->bundles, 1, relaxed); /* first: it is never less than what waits */
  tp_lock_acquire(&m->lock);
  bool empty = !m->first;
  if (empty)
    m->first = bundle;
  else
    m->last->behind = bundle;
  m->last = bundle;
  tp_lock_release(&m->lock);
  if (empty) attend(u, i); /* U1 */
}
