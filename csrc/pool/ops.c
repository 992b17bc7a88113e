#include "pool/ops.h"

#include <string.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "base/error.h"
#include "sync/lock.h"

typedef _Atomic(const tp_op *) slot; /* O2: release when it is filled, acquire when it is read */

/* O2 */
typedef struct table {
  struct table *older;
  size_t codes; /* length of by_code */
  size_t mask;  /* of by_name, which is at most half full */
  size_t names; /* in by_name */
  slot *by_code;
  slot *by_name;
} table;

struct tp_ops {
  tp_lock lock; /* of those who add */
  tp_op *all;
  _Atomic(table *) now;
};

static uint64_t hash(const char *name, size_t length) {
  uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a */
  for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)name[i]) * 0x100000001b3ull;
  return h;
}

tp_ops *tp_ops_new(void) {
  return tp_alloc(sizeof(tp_ops));
}

void tp_ops_free(tp_ops *ops) {
  if (!ops) return;
  for (table *t = tp_load(&ops->now, relaxed), *older; t; t = older) { /* nobody reads any more */
    older = t->older;
    tp_free(t);
  }
  for (tp_op *op = ops->all, *next; op; op = next) {
    next = op->next;
    tp_free(op);
  }
  tp_free(ops);
}

/* The operation of that name; NULL: there is none, and *at is where it would be. */
static const tp_op *find(const table *t, const char *name, size_t length, size_t *at) {
  for (*at = hash(name, length) & t->mask;; *at = (*at + 1) & t->mask) {
    const tp_op *op = tp_load(&t->by_name[*at], acquire);
    if (!op || (strlen(op->name) == length && memcmp(op->name, name, length) == 0)) return op;
  }
}

/* Lock held. It replaces what has its name or opcode. */
static void put_name(table *t, const tp_op *op) {
  size_t at;
  if (!find(t, op->name, strlen(op->name), &at)) t->names++;
  tp_store(&t->by_name[at], op, release);
}
static void put_code(table *t, const tp_op *op) {
  if (op->opcode >= 0) tp_store(&t->by_code[op->opcode], op, release);
}

/* Lock held. A table with the contents of the old one (may be NULL) and room for `op`; the old one itself if it has
 * that; NULL: out of memory. */
static table *with_room(table *old, const tp_op *op) {
  size_t need = (size_t)(op->opcode + 1); /* from 0 on */
  if (old && need <= old->codes && 2 * (old->names + 1) <= old->mask + 1) return old;
  size_t codes = old ? old->codes : 16, slots = old ? old->mask + 1 : 32;
  if (need > codes) codes = need > 2 * codes ? need : 2 * codes;
  if (old && 2 * (old->names + 1) > slots) slots *= 2;
  table *t = tp_alloc(sizeof *t + (codes + slots) * sizeof(slot));
  if (!t) return NULL;
  t->older = old;
  t->codes = codes;
  t->mask = slots - 1;
  t->by_code = (slot *)(t + 1);
  t->by_name = t->by_code + codes;
  for (size_t i = 0; old && i < old->codes; i++) {
    const tp_op *o = tp_load(&old->by_code[i], relaxed); /* filled under the lock */
    if (o) tp_store(&t->by_code[i], o, relaxed);         /* the whole table is published */
  }
  for (size_t i = 0; old && i <= old->mask; i++) {
    const tp_op *o = tp_load(&old->by_name[i], relaxed);
    if (o) put_name(t, o);
  }
  return t;
}

/* Lock held. Whether it is there already, as it is. */
static bool is_known(const table *t, const tp_op *op) {
  size_t at;
  const tp_op *o = t ? find(t, op->name, strlen(op->name), &at) : NULL;
  return o && o->opcode == op->opcode && o->run == op->run && o->poll == op->poll &&
         o->drop == op->drop && o->blocking == op->blocking && o->missing == op->missing &&
         o->user_data == op->user_data &&
         (op->opcode < 0 || tp_load(&t->by_code[op->opcode], relaxed) == o);
}

static int check(const threadpool_handler *h, const char *missing) {
  if (!h || !h->name || !h->name[0] || strlen(h->name) > TP_OP_NAME_MOST)
    return tp_say(ERR_INVALID_ARGUMENT, "handler name: expected 1 to %d characters",
                  TP_OP_NAME_MOST);
  for (const char *c = h->name; *c; c++)
    if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9') &&
        *c != '_' && *c != '-')
      return tp_say(ERR_INVALID_ARGUMENT, "handler name \"%s\": expected letters, digits, _ and -",
                    h->name);
  if (h->opcode < -1 || h->opcode > TP_OPCODE_MOST)
    return tp_say(ERR_INVALID_ARGUMENT, "handler %s: opcode %lld: expected -1 (none) or 0 to %d",
                  h->name, (long long)h->opcode, TP_OPCODE_MOST);
  if (!missing && !h->run == !h->poll)
    return tp_say(ERR_INVALID_ARGUMENT, "handler %s: expected either run or poll", h->name);
  if (h->drop && !h->poll)
    return tp_say(ERR_INVALID_ARGUMENT, "handler %s: drop is for the state of a poll handler",
                  h->name);
  return 0;
}

int tp_ops_add(tp_ops *ops, const threadpool_handler *h, const char *missing) {
  int error = check(h, missing);
  if (error) return error;
  tp_op *op = tp_alloc(sizeof *op);
  if (!op) return tp_say(ERR_MALLOC_FAILED, "handler %s: out of memory", h->name);
  memcpy(op->name, h->name, strlen(h->name) + 1); /* check() has measured it */
  op->opcode = h->opcode;
  op->run = h->run;
  op->poll = h->poll;
  op->drop = h->drop;
  op->blocking = h->blocking;
  op->missing = missing;
  op->user_data = h->user_data;
  tp_lock_acquire(&ops->lock);
  table *now = tp_load(&ops->now, relaxed); /* ours, under the lock */
  bool known = is_known(now, op);
  table *t = known ? NULL : with_room(now, op);
  if (t) {
    op->next = ops->all;
    ops->all = op;
    put_name(t, op);
    put_code(t, op);
    tp_store(&ops->now, t, release); /* pairs with the acquire of the look-ups */
  }
  tp_lock_release(&ops->lock);
  if (t) return 0;
  tp_free(op);
  return known ? 0 : tp_say(ERR_MALLOC_FAILED, "handler %s: out of memory", h->name);
}

const tp_op *tp_ops_by_code(const tp_ops *ops, uint64_t opcode) {
  const table *t = tp_load(&ops->now, acquire);
  return t && opcode < t->codes ? tp_load(&t->by_code[opcode], acquire) : NULL;
}

const tp_op *tp_ops_by_name(const tp_ops *ops, const char *name, size_t length) {
  const table *t = tp_load(&ops->now, acquire);
  size_t at;
  return t && length > 0 && length <= TP_OP_NAME_MOST ? find(t, name, length, &at) : NULL;
}
