/* harness_vector.h - the workload vector_topk. Used by: harness.c. */
#ifndef BENCH_HARNESS_VECTOR_H
#define BENCH_HARNESS_VECTOR_H

#include "harness.h"

/* Makes the matrix, and finds what is to come out. */
void bench_vector_start(void);

/* One call, in microseconds. */
double bench_vector_sample(const bench_impl *impl);

#endif
