#include "pool/ops.h"

#include <string.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "base/error.h"
#include "sync/lock.h"

/* O2 */
typedef struct snapshot {
  struct snapshot *older;
  size_t codes; /* length of by_code */
  size_t mask;  /* of by_name, which is at most half full */
  const tp_op **by_code;
  const tp_op **by_name;
} snapshot;

struct tp_ops {
  tp_lock lock; /* of those who add */
  tp_op *all;
  size_t count;
  _Atomic(snapshot *) now;
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
  for (snapshot *s = tp_load(&ops->now, relaxed), *older; s;
       s = older) { /* nobody reads any more */
    older = s->older;
    tp_free(s);
  }
  for (tp_op *op = ops->all, *next; op; op = next) {
    next = op->next;
    tp_free(op);
  }
  tp_free(ops);
}

static void put_name(snapshot *s, const tp_op *op) {
  size_t at = hash(op->name, strlen(op->name)) & s->mask;
  while (s->by_name[at]) at = (at + 1) & s->mask;
  s->by_name[at] = op;
}

/* Whether `op` is still current: no newer one has its name. */
static bool replaced(const tp_op *newer, const tp_op *op) {
  return newer && newer != op && strcmp(newer->name, op->name) == 0;
}

/* Of all operations, newest first: the newest of a name, and of an opcode, counts. */
static snapshot *take_snapshot(const tp_ops *ops) {
  size_t codes = 0, names = 8;
  for (const tp_op *op = ops->all; op; op = op->next)
    if (op->opcode >= (int64_t)codes) codes = (size_t)op->opcode + 1;
  while (names < 2 * ops->count) names *= 2;
  snapshot *s = tp_alloc(sizeof *s + (codes + names) * sizeof(tp_op *));
  if (!s) return NULL;
  s->codes = codes;
  s->mask = names - 1;
  s->by_code = (const tp_op **)(s + 1);
  s->by_name = s->by_code + codes;
  for (const tp_op *op = ops->all; op; op = op->next) {
    if (op->opcode >= 0 && !s->by_code[op->opcode]) s->by_code[op->opcode] = op;
    size_t at = hash(op->name, strlen(op->name)) & s->mask;
    while (s->by_name[at] && !replaced(s->by_name[at], op)) at = (at + 1) & s->mask;
    if (!s->by_name[at]) put_name(s, op);
  }
  return s;
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
  if (h->poll && h->blocking)
    return tp_say(ERR_INVALID_ARGUMENT, "handler %s: a poll handler does not block: give it as run",
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
  op->next = ops->all;
  ops->all = op;
  ops->count++;
  snapshot *s = take_snapshot(ops);
  if (s) {
    s->older = tp_load(&ops->now, relaxed); /* ours, under the lock */
    tp_store(&ops->now, s, release);        /* pairs with the acquire of the look-ups */
  } else {
    ops->all = op->next;
    ops->count--;
    tp_free(op);
    error = tp_say(ERR_MALLOC_FAILED, "handler %s: out of memory", h->name);
  }
  tp_lock_release(&ops->lock);
  return error;
}

const tp_op *tp_ops_by_code(const tp_ops *ops, uint64_t opcode) {
  const snapshot *s = tp_load(&ops->now, acquire);
  return s && opcode < s->codes ? s->by_code[opcode] : NULL;
}

const tp_op *tp_ops_by_name(const tp_ops *ops, const char *name, size_t length) {
  const snapshot *s = tp_load(&ops->now, acquire);
  if (!s || length == 0 || length > TP_OP_NAME_MOST) return NULL;
  for (size_t at = hash(name, length) & s->mask; s->by_name[at]; at = (at + 1) & s->mask)
    if (strlen(s->by_name[at]->name) == length && memcmp(s->by_name[at]->name, name, length) == 0)
      return s->by_name[at];
  return NULL;
}
