/* alloc.h - all memory and all threads come from here, so that failure can be injected.
 *
 * Depends on: nothing. [any] thread.
 */
#ifndef TP_BASE_ALLOC_H
#define TP_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* Zeroed memory aligned to a cache line, or NULL. Freed with tp_free. */
void *tp_alloc(size_t size);

/* NULL is allowed. */
void tp_free(void *p);

/* For large tables of which little may ever be used: zeroed memory that costs nothing until it is touched,
 * in huge pages where the system has them; or NULL. Freed with tp_unmap and the same size; NULL is allowed. */
void *tp_map(size_t size);
void tp_unmap(void *p, size_t size);

/* Memory of requests and results: as of malloc, realloc and free, so neither zeroed nor aligned to a line. Where there is
 * none the call tries again, sleeping between, TP_GET_TRIES times in all: some 4 ms, then NULL. What was to be resized
 * stays valid then. tp_put is free. */
enum { TP_GET_TRIES = 5 };
void *tp_get(size_t size);
void *tp_resize(void *p, size_t size);
void tp_put(void *p);

/* The same for what is not had by tp_get. After an attempt that failed (*failed is 0 at first): it sleeps, and true: try
 * again; false: these were enough. Without a lock held. */
bool tp_try_again(int *failed);

/* Whether the next thing that may fail (an allocation, a thread, a file descriptor) is to fail:
 * asked by tp_alloc, tp_map, each try of tp_get and tp_resize, and tp_thread_start. */
bool tp_fail_now(void);

/* For tests: let the nth attempt from now fail (1 = the next), once; 0 switches it off. tp_fail_run: and those that
 * follow, `count` in all. tp_fail_left tells how many attempts were still to come, 0 when the last one has failed. */
void tp_fail_at(long nth);
void tp_fail_run(long nth, long count);
long tp_fail_left(void);

#endif
