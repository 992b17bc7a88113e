/* help.h - what test programs share: their size, pools, and waiting for a condition.
 *
 * cmocka's assertions leave by longjmp, so only the main thread makes them; the functions here that any
 * thread may call end the program instead.
 */
#ifndef TP_TEST_HELP_H
#define TP_TEST_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/pool.h"
#include "base/clock.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED 1
#endif
#endif

/* How much to do: `quick` under TP_QUICK, ten times `normal` under TP_STRESS. */
long test_size(long quick, long normal);

threadpool_t *test_pool(threadpool_options o);
tp_task *test_spawn(threadpool_t *pool, tp_poll_fn poll, void *arg);
/* Waits for the task's end, gives its handle back and returns its code. */
int test_end_of(tp_task *t);

/* [any] The sum over all seats. */
threadpool_counters test_stats(threadpool_t *pool);

/* [any] Whether at one moment every worker was blocked because there was nothing to do. */
bool test_all_parked(threadpool_t *pool);

/* [any] Go on when the condition holds. If it does not for a minute, the program ends with its text. */
#define test_wait(condition)                                                                       \
  for (test_waiting waiting_ = {0, 0}; !(condition);)                                              \
  test_still_waiting(&waiting_, __FILE__, __LINE__, #condition)

/* [any] For what must hold on threads that cannot use cmocka's assertions. */
#define test_must(condition)                                                                       \
  do {                                                                                             \
    if (!(condition)) test_stop("wrong", __FILE__, __LINE__, #condition);                          \
  } while (0)

typedef struct test_waiting {
  unsigned tries;
  uint64_t since_ns;
} test_waiting;
void test_still_waiting(test_waiting *w, const char *file, int line, const char *what);
_Noreturn void test_stop(const char *why, const char *file, int line, const char *what);

#endif
