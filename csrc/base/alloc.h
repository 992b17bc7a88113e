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

/* Whether the next thing that may fail (an allocation, a thread, a file descriptor) is to fail:
 * asked by tp_alloc and tp_thread_start. */
bool tp_fail_now(void);

/* For tests: let the nth attempt from now fail (1 = the next), once; 0 switches it off.
 * tp_fail_left tells how many attempts were still to come, 0 when it has fired. */
void tp_fail_at(long nth);
long tp_fail_left(void);

#endif
