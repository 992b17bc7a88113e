/* assert.h - invariants that debug builds (make debug) check and release builds do not pay for. */
#ifndef TP_BASE_ASSERT_H
#define TP_BASE_ASSERT_H

#ifdef TP_DEBUG
#include <stdio.h>
#include <stdlib.h>
#define TP_ASSERT(cond, what)                                                                      \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      fprintf(stderr, "threadpool: %s:%d: %s: broken: %s\n", __FILE__, __LINE__, #cond, what);     \
      abort();                                                                                     \
    }                                                                                              \
  } while (0)
#else
#define TP_ASSERT(cond, what) ((void)sizeof(cond))
#endif

#endif
