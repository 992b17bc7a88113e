/* updater.h - mailboxes, and the tasks that read them: decoding away from the thread that submits.
 *
 * A bundle is a chain of requests that were submitted together. A mailbox is a queue of bundles, first in, first out.
 * A domain is a range of mailboxes; while there is something in it, it has an updater, which is a task that opens one
 * bundle after another. Under backlog an updater splits its domain and the new half gets an updater of its own; one
 * that finds nothing ends, and its left neighbour has the domain back. The domain that begins at mailbox 0 is never
 * given away.
 *
 * U1  A mailbox with something in it belongs to a domain whose updater is alive, or to one that the sender who found
 *     the mailbox empty is about to attend. (A mailbox that was not empty has had such a sender.)
 * U2  Bounds, owners, `alive` and `again` change under the lock of the domains. An updater ends only if `again` was
 *     not set since it last read its bounds, in the section in which it clears `alive` or gives its domain away. So
 *     who attends finds it alive, and it makes another pass; or finds it ended, and starts one.
 * U3  A bundle is taken by exactly one updater, under the lock of its mailbox.
 * U4  An updater is a task like any other: a drain waits for it. One that is cancelled reads its domain to the end
 *     first, since every request that was accepted has a result.
 *
 * The mailboxes cannot be full: a bundle is linked through its requests. What grows is the table of those
 * (task/slab.h), by segments, which nobody waits for.
 * Depends on: task/. Used by: pool/calls.c, pool/call.c.
 */
#ifndef TP_POOL_UPDATER_H
#define TP_POOL_UPDATER_H

#include "task/task.h"

/* Part of whatever is sent. */
typedef struct tp_letter {
  struct tp_letter *next;   /* of its bundle */
  struct tp_letter *behind; /* of the first one: the next bundle */
} tp_letter;

typedef struct tp_updaters tp_updaters;
typedef void (*tp_open_fn)(tp_letter *letter);

/* [any] `open` is called once for each letter. NULL: out of memory. */
tp_updaters *tp_updaters_new(tp_tasks *tasks, tp_open_fn open);
/* [any, after all tasks have ended] NULL is allowed. */
void tp_updaters_free(tp_updaters *u);

/* [any] Whether a bundle would be read soon: a worker has nothing to do, or an updater is at work; and, for one that is
 * not part of a larger batch (`alone`), there is no backlog. A `large` one of a batch is left to them in any case: to read it
 * takes longer than to wait for a turn. If not, whoever has one opens it himself. */
bool tp_updaters_ready(const tp_updaters *u, bool alone, bool large);

/* [any] Send a bundle, whose letters are then no longer the sender's. Without memory for an updater, the sender is it. */
void tp_updaters_send(tp_updaters *u, tp_letter *bundle);

#endif
