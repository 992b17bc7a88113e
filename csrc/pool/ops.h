/* ops.h - the operations of a pool: from an opcode or a name to a handler.
 *
 * O1  An operation, once added, stays valid until the table is freed: calls keep pointers to it. One that is added
 *     again as it is costs nothing.
 * O2  Readers take no lock. Adding fills a slot, in place, or if there is none makes a table of double the size: the
 *     old ones are kept, since somebody may look into them, but all of them are not more than the last.
 *
 * Depends on: base/, sync/, threadpool.h. Used by: pool/, ops/, api/.
 */
#ifndef TP_POOL_OPS_H
#define TP_POOL_OPS_H

#include "threadpool.h"

enum { TP_OPCODE_MOST = 65535, TP_OP_NAME_MOST = 63 };

typedef struct tp_op {
  char name[TP_OP_NAME_MOST + 1];
  int64_t opcode;
  handler_fn run;
  threadpool_poll_fn poll;
  void (*drop)(void *state); /* may be NULL */
  bool blocking;
  const char *missing; /* not NULL: known, but not to be had, and why */
  void *user_data;
  struct tp_op *next; /* all of a table, for freeing */
} tp_op;

typedef struct tp_ops tp_ops;

tp_ops *tp_ops_new(void); /* NULL: out of memory */
void tp_ops_free(tp_ops *ops);

/* [any] 0; ERR_INVALID_ARGUMENT or ERR_MALLOC_FAILED after tp_say. `missing` as in tp_op. */
int tp_ops_add(tp_ops *ops, const threadpool_handler *handler, const char *missing);

/* [any] NULL: there is none. */
const tp_op *tp_ops_by_code(const tp_ops *ops, uint64_t opcode);
const tp_op *tp_ops_by_name(const tp_ops *ops, const char *name, size_t length);

#endif
