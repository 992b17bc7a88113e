/* call.h - a request's life: its record, its task, its results and who gets them.
 *
 * Depends on: task/, io/delay.h, pool/ops.h. Used by: pool/request.c, pool/handler.c, api/.
 *
 * V1  A call's lock guards its stage and everything about delivery. It is held for moments, never while a
 *     handler or a callback runs. The lock itself is valid as long as the slab, whatever becomes of the call.
 *     While it is FREE the record is whose who took it: he fills it in without the lock, and ends that by a release
 *     store of the stage. A look-up by an old id reads the stage first: FREE, or the new id as well.
 * V2  Exactly one final entry: made by the end of the call's task (K4: once), or by the submitter if there is
 *     none to be had. Partial entries come before it, in order. Who finds the
 *     window full waits for a fetch; when the pool closes there will be none, and it is told to end.
 * V3  The final entry is part of the record. Whoever fetches it owns the record, and gives it back by
 *     threadpool_result_free: under the call's lock, so that a shutdown that looks at the record waits.
 * V4  `pending` counts the calls whose final entry nobody has fetched yet. A poll handler that submits has room for
 *     max_pending more than who submitted its own request: else all of them could be handlers that wait for room.
 * V5  A record that outlives its pool (fetched, not freed) keeps the slab: the last one frees it.
 * V6  A handler that waits for the entry of another call looks whether it is to end itself: when it is cancelled or the
 *     pool closes, which open `waits`; at its own deadline; and while the pool closes now and then. Once the pool cancels
 *     all, no shield holds that off: two that wait for each other would never end.
 */
#ifndef TP_POOL_CALL_H
#define TP_POOL_CALL_H

#include <yyjson.h>

#include "io/delay.h"
#include "pool/arena.h"
#include "pool/ops.h"
#include "pool/symbols.h"
#include "pool/updater.h"
#include "task/slab.h"
#include "task/task.h"

typedef struct tp_calls tp_calls;

/* What a program sees as result_t. */
typedef struct tp_entry {
  result_t r;            /* first: the result is the entry */
  struct tp_entry *next; /* of a call, or among the completions */
  task_t *call;          /* whose it is; of a partial one that was handed out: NULL */
  bool final;            /* part of the record, not allocated by itself (V3) */
  uint32_t mark;         /* of the request, for who takes entries of several pools from one queue */
  void (*release)(void *data, void *arg);
  void *release_arg;
} tp_entry;

/* SENT: accepted, and not yet decoded. */
typedef enum {
  TP_CALL_FREE,
  TP_CALL_SENT,
  TP_CALL_LIVE,
  TP_CALL_DONE,
  TP_CALL_FETCHED,
  TP_CALL_ORPHAN
} tp_stage;

/* A region that a task uses. */
typedef struct tp_pin {
  struct tp_pin *next;
  tp_symbol_pin_t pin;
} tp_pin;

/* A text that threadpool_arg_json made. */
typedef struct tp_printed {
  struct tp_printed *next;
  char *text;
} tp_printed;

/* In the order of use: the submitter, the worker and who fetches are on different cores, and each line of a record that
 * goes from one to the next costs more than decoding a short request does. So what all of them touch is in few lines:
 * the first three, the one in which the entry ends, and the beginning of the arena. */
struct threadpool_task {
  TP_ALIGNED tp_record record;
  tp_letter letter;      /* while SENT */
  tp_lock lock;          /* V1 */
  _Atomic uint8_t stage; /* V1 */
  uint8_t deliver;       /* constant while it lives */
  bool detached;         /* V1 */
  bool credited;         /* constant: its partial entries count until tp_call_credit */
  bool limited;          /* it has a deadline */
  bool has_json;         /* constant: `text` is that, and not a payload */
  bool unwanted;         /* V1: cancelled while SENT */
  bool told;             /* [runner] the handler has seen that it is to end */
  bool emit_waits;       /* V1: a poll handler is to be woken when there is room */
  bool napped;           /* [runner] `nap` was started */
  uint8_t format;        /* [runner] RESULT_LUA, if that is what its entries hold */
  uint8_t nested : 6;    /* constant: by how many poll handlers, one in the other; V4 */
  uint8_t priority : 2;  /* constant; of a request without JSON, as are opcode and timeout_ms */
  uint32_t waiting;      /* V1: partial entries that were not fetched yet */
  int refused;           /* [runner] why it could not be started */
  tp_calls *calls;
  tp_task *task; /* V1: while LIVE; it has not ended then */
  /* second line */
  char *text; /* with its padding; its payload if it has no JSON; NULL: too large */
  size_t text_size;
  yyjson_doc *doc;
  yyjson_val *args;
  threadpool_queue *queue; /* constant */
  tp_pin *pins;            /* [runner] until its end */
  tp_entry *first, *last;  /* V1: partial entries */
  /* third line, with the beginning of the entry */
  const tp_op *op;
  void *state;       /* of a poll handler */
  uint64_t sequence; /* [runner] of the next entry */
  result_callback_fn callback;
  void *user_data;
  tp_entry result; /* the final entry */
  /* what few need */
  threadpool_t *pool;
  tp_printed *printed; /* [runner] until its end: what threadpool_arg_json made */
  tp_latch *waiter;    /* V1: who waits for an entry; NULL while FREE */
  tp_latch *room;      /* V1: a plain handler that waits for room */
  tp_latch *waits;     /* V1: its handler waits for another call's entry (V6) */
  uint64_t begin_ns;   /* when it was submitted */
  uint32_t opcode;
  uint32_t timeout_ms;
  tp_arena arena; /* of its text, what was parsed, its result */
  tp_alarm_clock deadline, nap;
};
_Static_assert((offsetof(struct threadpool_task, result) + sizeof(tp_entry)) % TP_CACHE_LINE == 0 &&
                   offsetof(struct threadpool_task, text) == TP_CACHE_LINE &&
                   offsetof(struct threadpool_task, op) == 2 * TP_CACHE_LINE,
               "the lines are as said above");

typedef struct tp_calls_options {
  uint32_t max_pending, max_request_bytes, max_depth, window, initial;
} tp_calls_options;

/* [any] NULL: out of memory. */
tp_calls *tp_calls_new(threadpool_t *pool, tp_tasks *tasks, tp_reactor *reactor,
                       const tp_calls_options *options);
/* [any] Nobody can fetch any more: who waits for room in a window is told that there will be none. */
void tp_calls_close(tp_calls *cs);
/* [any, after all tasks have ended] Frees what nobody fetched; V5. */
void tp_calls_free(tp_calls *cs);

const tp_calls_options *tp_calls_limits(const tp_calls *cs);
tp_ops *tp_calls_ops(tp_calls *cs);
symbol_table_t *tp_calls_symbols(tp_calls *cs);

/* [any] Submit n requests; ids[i] gets the id of the i-th. Returns how many were accepted: the first ones; less than
 * n after tp_say. */
size_t tp_call_submit(tp_calls *cs, const threadpool_request *requests, size_t n, uint64_t *ids);

/* [any] The next entry; NULL: not yet. deadline_ns: 0 do not wait, UINT64_MAX without limit. */
result_t *tp_call_fetch(tp_calls *cs, uint64_t id, uint64_t deadline_ns);
/* [any] An entry of no call. */
result_t *tp_call_error(uint64_t id, int code, const char *message);
int tp_call_cancel(tp_calls *cs, uint64_t id);
int tp_call_detach(tp_calls *cs, uint64_t id);
int tp_call_status(tp_calls *cs, uint64_t id);
/* [any] Whether the request is under way, or its final entry was not freed yet. */
bool tp_call_exists(tp_calls *cs, uint64_t id);
/* [any] n partial entries of a `credited` request were used. */
int tp_call_credit(tp_calls *cs, uint64_t id, uint32_t n);
/* [any] The pool's own. */
threadpool_queue *tp_calls_queue(tp_calls *cs);
/* [any] How many count towards max_pending (V4): a recent value. */
uint32_t tp_calls_pending(tp_calls *cs);

/* [H] For handler.c. */
bool tp_call_cancelled(task_t *call);
int tp_call_emit(task_t *call, const void *data, size_t size);
void tp_call_return(task_t *call, void *data, size_t size, void (*release)(void *, void *),
                    void *arg);
/* [H] Until the end of the call; 0, or a code after tp_say. */
int tp_call_pin(task_t *call, const char *name, size_t length, uint32_t access,
                tp_symbol_pin_t *out);
int tp_call_nap(task_t *call, uint64_t deadline_ns);

#endif
