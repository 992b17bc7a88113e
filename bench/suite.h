/* suite.h - what is measured (workloads), with what (programs), and what came out (cells).
 *
 * Filled by run.c, read by report.c and plot.c.   Used by: driver.c.
 */
#ifndef BENCH_SUITE_H
#define BENCH_SUITE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
  const char *name;
  const char *unit;
  const char *title;
  int samples;       /* a program takes these in one round, unless its time budget is over */
  int rounds_tenths; /* its share of the rounds: 10 = all of them */
  int threads;       /* of every pool; 0: as many as asked for */
  const char *than;  /* another workload: how much faster this one is, is told */
} workload;

typedef struct {
  const char *name;      /* `impl` in the JSON */
  const char *program;   /* file in the directory of programs */
  const char *argument;  /* its first argument, or NULL */
  const char *workloads; /* what it has, between spaces; NULL: all */
  const char *colour;    /* of its bars */
  bool pool;             /* has as many threads as asked for; else it has one */
} impl;

extern const workload workloads[];
extern const int workload_count;
extern const impl impls[];
extern const int impl_count;

enum { OURS, OURS_LUA, SEQUENTIAL }; /* the first ones of impls[]; peers follow */
enum { IMPLS_MOST = 24, WORKLOADS_MOST = 40 };

/* One workload measured with one implementation. */
typedef enum { ABSENT, MEASURED, MISSING, FAILED } outcome;

typedef struct {
  outcome outcome;
  double *samples;
  size_t count, capacity;
  double median, low, high; /* low, high: 10th and 90th percentile */
  char reason[256];         /* MISSING, FAILED */
} cell;

typedef struct {
  const char *programs; /* directory */
  const char *only;     /* names between commas or spaces; empty: all */
  const char *json, *svg;
  int threads, rounds;
} options;

typedef struct {
  char cpu[128];
  char compilers[256];
  char versions[IMPLS_MOST][256]; /* by impl: its version, or why it is missing */
  bool missing[IMPLS_MOST];
  int cpus;
  double load;
} machine;

/* The cells of a run: grid[w * impl_count + i]. */
typedef struct {
  const options *options;
  machine machine;
  bool *wanted; /* by workload */
  cell *grid;
} results;

int threads_of(const results *r, int w, int i);
bool has_workload(const impl *i, const char *workload);
cell *cell_at(const results *r, int w, int i);

/* Ours in this row: OURS, or OURS_LUA. */
int ours_at(const results *r, int w);

/* suite.c. The implementations of a row in the order to show: ours, sequential, then the others
 * from fast to slow, then those without a figure. Returns how many. */
int shown_order(const results *r, int w, int order[]);

/* "0.62", "14.9", "1570": three digits where there is room. */
const char *figure(char buffer[32], double value);

/* run.c */
void find_machine(results *r);
void run_workload(results *r, int w);

/* report.c, plot.c. False: the file could not be written. */
void print_header(const results *r);
void print_workload(const results *r, int w);
bool write_json(const results *r);
bool write_svg(const results *r);

#endif
