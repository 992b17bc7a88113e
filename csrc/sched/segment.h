/* segment.h - which of a seat's jobs belong to which guarded function.
 *
 * docs/CRASHES.md, X2, X5, X6. Depends on: base/. Used by: sched/.
 *
 * A seat's stack is made of *segments*: a guarded function, a job of another one that is being run while this one
 * waits, and so on. They lie in the seat, not on the stack, so that a thief may look at them at any time. A seat on
 * which nothing is guarded has none, and then none of this costs more than a load.
 */
#ifndef TP_SCHED_SEGMENT_H
#define TP_SCHED_SEGMENT_H

#include "base/atomic.h"
#include "sched/work.h"

/* How a guarded function crashed. */
typedef struct tp_crash {
  int signal;    /* SIGSEGV, SIGBUS, SIGFPE, SIGILL */
  int code;      /* si_code */
  void *address; /* si_addr */
} tp_crash;

typedef struct tp_segment {
  TP_ALIGNED _Atomic int64_t from; /* [W] writes: jobs from here up to the next segment's are its */
  _Atomic bool guarded;            /* [W] writes: false, a fault in it is not recovered */
  _Atomic bool waiting;            /* [W] writes: its thread waits for out == 0 */
  _Atomic bool crashed;            /* [any] whoever makes it true writes `crash` (X6) */
  _Atomic uint32_t out; /* [any] stolen jobs, and spawns of its scopes, that are not over (X5) */
  tp_worker *seat;      /* constant */
  struct tp_segment
      *parent;    /* [W] the segment of the job that it runs; NULL: a function of its own */
  tp_crash crash; /* valid once out == 0 */
} tp_segment;

enum { TP_SEGMENTS_FIRST = 4, TP_SEGMENTS_MORE = 64, TP_SEGMENT_CHUNKS = 16 };

/* Of a seat. */
typedef struct tp_segments {
  TP_ALIGNED _Atomic uint32_t depth;             /* [W] writes, [any] reads */
  _Atomic(tp_segment *) more[TP_SEGMENT_CHUNKS]; /* allocated when needed, freed with the seat */
  tp_segment first[TP_SEGMENTS_FIRST];
} tp_segments;

#endif
