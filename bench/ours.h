/* ours.h - what the two halves of threadpool's own program share. */
#ifndef BENCH_OURS_H
#define BENCH_OURS_H

#include "harness.h"

#include <threadpool.h>

extern threadpool_t *pool;

/* Posts one task that calls bench_count(). */
void post_empty(void);

/* ours_json.c: requests; and the floor below them, a parse and an empty task for each. */
void json_start(void);
extern const bench_json json_requests, json_floor;

#endif
