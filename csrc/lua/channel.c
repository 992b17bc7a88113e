#include "lua/channel.h"

#include <pthread.h>

#include "base/error.h"
#include "base/process.h"
#include "pool/calls.h"

typedef struct tp_wait_list {
  tp_wait *first, *last;
} tp_wait_list;

struct tp_channel {
  TP_ALIGNED tp_lock lock; /* K1 */
  unsigned made_in;        /* constant, of the record: K9 */
  uint64_t serial;         /* of this use, as is limit: written under the lock */
  size_t limit, refs, count;
  bool closed;
  tp_message *first, *last; /* the queue */
  tp_wait_list receivers, senders;
  tp_channel *next; /* among the free ones */
};

/* --- records: K7 */

static struct {
  tp_lock lock;
  tp_channel *free;
  uint64_t serial;
  size_t alive;
} records;

/* K9: another thread may have had the lock. What is free in the parent is lost to the child. */
static void in_child(void) {
  tp_store(&records.lock.word, 0, relaxed); /* we are alone */
  records.free = NULL;
}

__attribute__((constructor)) static void see_forks(void) {
  (void)pthread_atfork(NULL, NULL,
                       in_child); /* without memory for that, what follows takes its chance */
}

tp_channel *tp_channel_new(size_t limit) {
  tp_lock_acquire(&records.lock);
  tp_channel *c = records.free;
  if (c) records.free = c->next;
  uint64_t serial = ++records.serial;
  records.alive++;
  tp_lock_release(&records.lock);
  if (!c) {
    c = tp_alloc(sizeof *c);
    if (!c) {
      tp_lock_acquire(&records.lock);
      records.alive--;
      tp_lock_release(&records.lock);
      return NULL;
    }
    c->made_in = tp_load(&tp_generation, relaxed);
  }
  tp_lock_acquire(&c->lock); /* somebody may look at an old mention */
  c->serial = serial;
  c->limit = limit;
  c->refs = 1;
  c->closed = false;
  tp_lock_release(&c->lock);
  return c;
}

size_t tp_channel_alive(void) {
  tp_lock_acquire(&records.lock);
  size_t alive = records.alive;
  tp_lock_release(&records.lock);
  return alive;
}

tp_mention tp_channel_mention(const tp_channel *c) {
  return (tp_mention){(tp_channel *)(uintptr_t)c, c->serial};
}

static bool is_foreign(const tp_channel *c) {
  return tp_forked(c->made_in);
}

tp_channel *tp_channel_find(tp_mention m) {
  tp_channel *c = m.channel;
  if (is_foreign(c)) return NULL;
  tp_lock_acquire(&c->lock);
  bool there = c->serial == m.serial && c->refs > 0;
  if (there) c->refs++;
  tp_lock_release(&c->lock);
  return there ? c : NULL;
}

/* The messages of a channel whose last reference that was, to be freed; NULL. */
static tp_message *let_go(tp_channel *c) {
  if (is_foreign(c)) return NULL;
  tp_lock_acquire(&c->lock);
  bool last = --c->refs == 0;
  tp_message *left = last ? c->first : NULL;
  if (last) {
    c->first = c->last = NULL;
    c->count = 0;
  }
  tp_lock_release(&c->lock);
  if (last) {
    tp_lock_acquire(&records.lock);
    c->next = records.free;
    records.free = c;
    records.alive--;
    tp_lock_release(&records.lock);
  }
  return left;
}

/* A list of messages, and what goes with them: without recursion. */
static void free_messages(tp_message *m) {
  while (m) {
    tp_message *next = m->next;
    for (uint32_t i = 0; i < m->mentions; i++) {
      tp_message *more = let_go(m->mention[i].channel), *last = more;
      if (!more) continue;
      while (last->next) last = last->next;
      last->next = next;
      next = more;
    }
    tp_put(m);
    m = next;
  }
}

void tp_channel_unref(tp_channel *c) {
  free_messages(let_go(c));
}

/* --- messages */

tp_message *tp_message_new(const tp_channel *c, const tp_bytes *bytes, const tp_bytes *mentions) {
  size_t n = mentions->size / sizeof(tp_mention);
  tp_message *m = tp_get(sizeof *m + n * sizeof *m->mention + bytes->size);
  if (!m) return NULL;
  m->next = NULL;
  m->size = bytes->size;
  m->mentions = 0;
  for (size_t i = 0; i < n; i++) {
    tp_mention one;
    memcpy(&one, mentions->data + i * sizeof one, sizeof one);
    bool own = one.channel == c && one.serial == c->serial; /* K6 */
    if (own || !tp_channel_find(one)) continue;
    m->mention[m->mentions++] = one;
  }
  memcpy(m->mention + m->mentions, bytes->data, bytes->size);
  return m;
}

void tp_message_free(tp_message *m) {
  free_messages(m);
}

/* --- lists. Lock held: */

static void park(tp_wait_list *list, tp_wait *w) {
  w->stage = TP_WAIT_PARKED;
  w->next = NULL;
  w->prev = list->last;
  if (w->prev)
    w->prev->next = w;
  else
    list->first = w;
  list->last = w;
}

static void unpark(tp_wait_list *list, tp_wait *w) {
  if (w->prev)
    w->prev->next = w->next;
  else
    list->first = w->next;
  if (w->next)
    w->next->prev = w->prev;
  else
    list->last = w->prev;
}

static tp_wait_list *list_of(tp_channel *c, const tp_wait *w) {
  return w->sends ? &c->senders : &c->receivers;
}

/* K5 */
static void tell(tp_wait *w, int code) {
  unpark(list_of(w->channel, w), w);
  w->stage = TP_WAIT_TOLD;
  w->code = code;
  tp_entry *e = w->notice;
  w->notice = NULL;
  *e = (tp_entry){.r = {.task_id = w->id, .flags = RESULT_FINAL | TP_RESULT_NOTICE}};
  tp_completions_push(w->queue, e);
}

static void tell_all(tp_wait_list *list, int code) {
  for (tp_wait *w = list->first, *next; w; w = next) {
    next = w->next;
    tell(w, code);
  }
}

static bool give(tp_channel *c, tp_message *m) {
  tp_wait *w = c->receivers.first;
  if (!w) return false;
  w->message = m;
  tell(w, 0);
  return true;
}

static void append(tp_channel *c, tp_message *m) {
  m->next = NULL;
  if (c->last)
    c->last->next = m;
  else
    c->first = m;
  c->last = m;
  c->count++;
}

/* K3 */
static void put_back(tp_channel *c, tp_message *m) {
  if (give(c, m)) return;
  m->next = c->first;
  c->first = m;
  if (!c->last) c->last = m;
  c->count++;
}

static int send(tp_channel *c, tp_message *m) {
  if (c->closed) return ERR_CLOSED;
  if (give(c, m)) return 0;
  if (c->count >= c->limit) return ERR_QUEUE_FULL;
  append(c, m);
  return 0;
}

static int receive(tp_channel *c, tp_message **m) {
  *m = c->first;
  if (!*m) return c->closed ? ERR_CLOSED : ERR_BUSY;
  c->first = (*m)->next;
  if (!c->first) c->last = NULL;
  c->count--;
  (*m)->next = NULL;
  tp_wait *w = c->senders.first;
  if (w && c->count < c->limit) { /* K2 */
    append(c, w->message);
    w->message = NULL;
    tell(w, 0);
  }
  return 0;
}

/* --- what others call */

int tp_channel_send(tp_channel *c, tp_message *m) {
  if (is_foreign(c)) return ERR_FORKED;
  tp_lock_acquire(&c->lock);
  int code = send(c, m);
  tp_lock_release(&c->lock);
  return code;
}

int tp_channel_receive(tp_channel *c, tp_message **m) {
  if (is_foreign(c)) return ERR_FORKED;
  tp_lock_acquire(&c->lock);
  int code = receive(c, m);
  tp_lock_release(&c->lock);
  return code;
}

int tp_channel_park(tp_wait *w) {
  tp_channel *c = w->channel;
  if (is_foreign(c)) return ERR_FORKED;
  tp_lock_acquire(&c->lock);
  int code = w->sends ? send(c, w->message) : receive(c, &w->message);
  if (code == ERR_QUEUE_FULL || code == ERR_BUSY) {
    c->refs++;
    park(list_of(c, w), w);
    code = TP_PARKED;
  }
  tp_lock_release(&c->lock);
  return code;
}

bool tp_channel_close(tp_channel *c) {
  if (is_foreign(c)) return false;
  tp_lock_acquire(&c->lock);
  bool first = !c->closed;
  c->closed = true;
  tell_all(&c->receivers, ERR_CLOSED); /* K2: there is no message */
  tell_all(&c->senders, ERR_CLOSED);
  tp_lock_release(&c->lock);
  return first;
}

bool tp_channel_is_closed(tp_channel *c) {
  if (is_foreign(c)) return true;
  tp_lock_acquire(&c->lock);
  bool closed = c->closed;
  tp_lock_release(&c->lock);
  return closed;
}

size_t tp_channel_count(tp_channel *c) {
  if (is_foreign(c)) return 0;
  tp_lock_acquire(&c->lock);
  size_t count = c->count;
  tp_lock_release(&c->lock);
  return count;
}

size_t tp_channel_limit(const tp_channel *c) {
  return c->limit;
}

/* --- waits */

int tp_wait_take(tp_wait *w, tp_message **m) {
  tp_channel *c = w->channel;
  *m = NULL;
  if (!c || is_foreign(c)) return ERR_BUSY;
  tp_lock_acquire(&c->lock);
  int code = w->stage == TP_WAIT_TOLD ? w->code : ERR_BUSY;
  if (code != ERR_BUSY && !w->sends) {
    *m = w->message;
    w->message = NULL;
  }
  tp_lock_release(&c->lock);
  return code;
}

bool tp_wait_leave(tp_wait *w, bool say) {
  tp_channel *c = w->channel;
  if (!c || is_foreign(c)) return false;
  tp_lock_acquire(&c->lock);
  bool left = false;
  if (w->stage == TP_WAIT_PARKED) {
    left = true;
    if (say)
      tell(w, ERR_CANCELLED);
    else
      unpark(list_of(c, w), w);
  } else if (w->stage == TP_WAIT_TOLD && w->message && !w->sends) {
    tp_message *m = w->message;
    w->message = NULL;
    left = true;
    put_back(c, m); /* K3 */
    w->code = ERR_CANCELLED;
  }
  if (!say) w->stage = TP_WAIT_LEFT;
  tp_lock_release(&c->lock);
  return left;
}

void tp_wait_clear(tp_wait *w) {
  tp_channel *c = w->channel;
  if (!c || is_foreign(c)) return;
  w->channel = NULL;
  tp_message_free(w->message);
  w->message = NULL;
  tp_put(w->notice);
  w->notice = NULL;
  tp_channel_unref(c);
}

/* --- K8 */

typedef struct tp_kept {
  uint64_t id;
  tp_mention mention;
} tp_kept;

/* Lock held. */
static bool has_room(tp_mentions *ms) {
  if (ms->count < ms->room) return true;
  size_t room = ms->room ? ms->room * 2 : 16;
  tp_kept *kept = tp_resize(ms->kept, room * sizeof *kept);
  if (!kept) return false;
  ms->kept = kept;
  ms->room = room;
  return true;
}

/* Lock held. Takes out those whose request is over; they are put at `out`, which has room for all. */
static size_t sweep(tp_mentions *ms, tp_calls *cs, tp_mention *out) {
  size_t kept = 0, gone = 0;
  for (size_t i = 0; i < ms->count; i++) {
    if (ms->kept[i].id == 0 || tp_call_exists(cs, ms->kept[i].id))
      ms->kept[kept++] = ms->kept[i];
    else
      out[gone++] = ms->kept[i].mention;
  }
  ms->count = kept;
  ms->next_sweep = kept * 2 < 64 ? 64 : kept * 2;
  return gone;
}

void tp_mentions_keep(tp_mentions *ms, tp_calls *cs, uint64_t id, const tp_bytes *mentions) {
  size_t n = mentions->size / sizeof(tp_mention), gone = 0;
  tp_mention *out = NULL;
  tp_lock_acquire(&ms->lock);
  for (size_t i = 0; i < n; i++) {
    tp_mention one;
    memcpy(&one, mentions->data + i * sizeof one, sizeof one);
    /* Without memory the handles alone keep it. */
    if (has_room(ms) && tp_channel_find(one)) ms->kept[ms->count++] = (tp_kept){id, one};
  }
  if (ms->count >= ms->next_sweep && (out = tp_get(ms->count * sizeof *out)))
    gone = sweep(ms, cs, out);
  tp_lock_release(&ms->lock);
  for (size_t i = 0; i < gone; i++) tp_channel_unref(out[i].channel);
  tp_put(out);
}

void tp_mentions_free(tp_mentions *ms) {
  for (size_t i = 0; i < ms->count; i++) tp_channel_unref(ms->kept[i].mention.channel);
  tp_put(ms->kept);
}
