/* channel.h - bounded queues of messages between Lua states: what a channel is, without Lua.
 *
 * A message is what lua/codec.h writes. Who has to wait leaves a `tp_wait` in the channel, which is told through the
 * completion queue of its state: so it waits like for the result of a request, and no worker has to be free for that.
 * What a Lua program sees: lua/channel_lua.c, lua/threadpool/channel.lua.
 *
 * K1  A channel's lock guards all of it, and the stage and message of each wait in it. It is held for moments, also while
 *     a wait is told (K5); the locks of lua/vm.h and of queues are taken inside it, never the other way round.
 * K2  Messages lie in the queue only if no receiver is parked; senders are parked only if the queue is full. Whoever
 *     changes the one looks at the other: a message that comes goes to the receiver that has waited longest, a place that
 *     gets free to the sender that has.
 * K3  A message is in one place: with its sender, in the queue, or with the receiver that it was given to. Until that has
 *     taken it (tp_wait_take), it goes back to the front, or to the next receiver, when the wait is left: by a timeout, by
 *     cancellation, by the end of its task or state. A sender that leaves before its message was taken over keeps it, and
 *     it is never seen.
 * K4  Closed: nothing is sent any more, parked senders keep their messages, parked receivers are told. What is in the
 *     queue can still be received.
 * K5  A wait is told once, under the lock, by a notice that was allocated before. After tp_wait_leave nobody touches the
 *     wait or its queue; a notice that is on its way finds no task.
 * K6  References: one for each handle (a userdata of some state), each wait, and each mention in a message. The last one
 *     to go frees the messages and gives the record back. A message that mentions the channel it is in has none for that.
 *     What stays: channels that only mention each other, in messages that nobody receives.
 * K7  The memory of a record is never given back, and each use of it has another serial: so a mention may be looked at
 *     when the channel is gone.
 * K8  The mentions in a request's message, and in its results, are kept until its final entry was read and freed
 *     (tp_mentions): looked for when there are twice as many as were left the last time.
 * K9  A channel of the parent of this process is not touched: its lock may be held for ever.
 *
 * Depends on: lua/bytes.h, pool/completions.h. Used by: lua/.
 */
#ifndef TP_LUA_CHANNEL_H
#define TP_LUA_CHANNEL_H

#include "lua/bytes.h"
#include "pool/completions.h"

typedef struct tp_channel tp_channel;

/* A channel by name: K7. */
typedef struct tp_mention {
  tp_channel *channel;
  uint64_t serial;
} tp_mention;

typedef struct tp_message {
  struct tp_message *next;
  size_t size;
  uint32_t mentions;    /* of other channels, each with a reference */
  tp_mention mention[]; /* and behind them the bytes */
} tp_message;

static inline const char *tp_message_data(const tp_message *m) {
  return (const char *)(m->mention + m->mentions);
}

typedef enum {
  TP_WAIT_PARKED, /* in the channel's list */
  TP_WAIT_TOLD,   /* `code` says how it ended */
  TP_WAIT_LEFT
} tp_wait_stage;

/* The waits of a worker's call, which end with it. */
typedef struct tp_waits {
  struct tp_wait *first;
} tp_waits;

typedef struct tp_wait {
  struct tp_wait *next, *prev; /* K1: in the channel's list */
  tp_channel *channel;         /* with a reference; NULL: it was given back */
  threadpool_queue *queue;     /* constant, as is id: the notice's task_id */
  uint64_t id;
  tp_message
      *message; /* K1: a sender's, until it was taken over; a receiver's, until it has taken it */
  tp_entry *notice;    /* K1: until it is told */
  int code;            /* K1 */
  tp_wait_stage stage; /* K1 */
  bool sends;          /* constant */
  tp_waits *of;        /* the lock of the state's waits, as the next two: of a call; NULL */
  struct tp_wait *of_next, *of_prev;
  struct tp_wait *next_of_all, *prev_of_all; /* [who has the state] until it is collected */
} tp_wait;

/* Flag of a notice. */
enum { TP_RESULT_NOTICE = 8 };

/* [any] A channel for `limit` messages, with a reference. NULL: out of memory. */
tp_channel *tp_channel_new(size_t limit);
tp_mention tp_channel_mention(const tp_channel *c);
/* [any] One more reference; NULL: it is gone. */
tp_channel *tp_channel_find(tp_mention m);
/* [any] How many there are: a recent value. */
size_t tp_channel_alive(void);
/* [any, with a reference] */
void tp_channel_unref(tp_channel *c);

/* [any] A message with a copy of the bytes, and references to what they mention, for this channel (K6); NULL: out of
 * memory. */
tp_message *tp_message_new(const tp_channel *c, const tp_bytes *bytes, const tp_bytes *mentions);
/* [any] NULL is allowed. */
void tp_message_free(tp_message *m);

/* [any, with a reference] 0: the message was taken over; ERR_QUEUE_FULL, ERR_CLOSED, ERR_FORKED: it was not. */
int tp_channel_send(tp_channel *c, tp_message *m);
/* [any, with a reference] 0 and a message; ERR_BUSY: there is none; ERR_CLOSED: and there will be none; ERR_FORKED. */
int tp_channel_receive(tp_channel *c, tp_message **m);
/* [any, with a reference] As the above, or TP_PARKED. The wait has channel, queue, id, sends,
 * message and notice; it gets a reference to the channel if it is parked. */
enum { TP_PARKED = 1 };
int tp_channel_park(tp_wait *w);
/* [any, with a reference] False: it was closed before, or is the parent's. */
bool tp_channel_close(tp_channel *c);
bool tp_channel_is_closed(tp_channel *c);
/* [any, with a reference] How many messages are in the queue: a recent value. */
size_t tp_channel_count(tp_channel *c);
size_t tp_channel_limit(const tp_channel *c);

/* [any] How it ended, and a receiver's message; ERR_BUSY: it has not, or it was left. */
int tp_wait_take(tp_wait *w, tp_message **m);
/* [any] It waits no more (K3). tell: whoever waits for its notice is told ERR_CANCELLED, unless it was told already.
 * False: it was over, and had been taken. */
bool tp_wait_leave(tp_wait *w, bool tell);
/* [who owns the wait] After tp_wait_take or tp_wait_leave: it has nothing any more. */
void tp_wait_clear(tp_wait *w);

/* The mentions in what was sent to a pool: K8. */
typedef struct tp_mentions {
  tp_lock lock;
  struct tp_kept *kept;
  size_t count, room, next_sweep;
} tp_mentions;

/* [any, inside the pool] Request `id` mentions these; 0: they are kept as long as the pool's states. */
void tp_mentions_keep(tp_mentions *ms, tp_calls *cs, uint64_t id, const tp_bytes *mentions);
/* [any, nobody uses it any more] */
void tp_mentions_free(tp_mentions *ms);

#endif
