/* harness_json.h - the workloads of requests in JSON. Used by: harness.c. */
#ifndef BENCH_HARNESS_JSON_H
#define BENCH_HARNESS_JSON_H

#include "harness.h"

typedef struct json_workload json_workload;

/* NULL: there is no such workload, or the implementation does not have it. */
const json_workload *bench_json_find(const bench_json *impl, const char *name);

/* One sample, in the workload's unit. `warm`: a short one, that is not to be used. */
double bench_json_sample(const bench_json *impl, const json_workload *w, bool warm);

#endif
