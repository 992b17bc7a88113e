/* report.c - the table on the terminal, and the JSON. */
#include "suite.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void print_header(const results *r) {
  const machine *m = &r->machine;
  printf(
      "threadpool beside its peers: %d threads, %d round%s, medians (10th to 90th percentile)\n\n",
      r->options->threads, r->options->rounds, r->options->rounds == 1 ? "" : "s");
  printf("  %-13s %s, %d CPUs; load %.2f before the run\n", "machine", m->cpu, m->cpus, m->load);
  printf("  %-13s %s\n", "compilers", m->compilers);
  for (int i = 0; i < impl_count; i++) {
    printf("  %-13s %s%s\n", impls[i].name, m->missing[i] ? "MISSING: " : "", m->versions[i]);
  }
  fflush(stdout);
}

/* Beside another workload of this run, if both were measured. */
static void print_gain(const results *r, int w) {
  const cell *ours = cell_at(r, w, OURS);
  for (int other = 0; workloads[w].than != NULL && other < workload_count; other++) {
    const cell *c = cell_at(r, other, OURS);
    if (strcmp(workloads[other].name, workloads[w].than) != 0) continue;
    if (ours->outcome != MEASURED || c->outcome != MEASURED) continue;
    printf("  %-13s %.2f times as fast as in %s\n", impls[OURS].name, c->median / ours->median,
           workloads[other].name);
  }
}

void print_workload(const results *r, int w) {
  int us = ours_at(r, w);
  const cell *ours = cell_at(r, w, us);
  int order[IMPLS_MOST];
  int n = shown_order(r, w, order);
  printf("\n%s: %s\n", workloads[w].name, workloads[w].title);
  printf("  %-13s %12s    %10s   %10s   %s\n", "", workloads[w].unit, "low", "high",
         "threadpool / it");
  for (int k = 0; k < n; k++) {
    const cell *c = cell_at(r, w, order[k]);
    char median[32], low[32], high[32];
    printf("  %-13s ", impls[order[k]].name);
    if (c->outcome != MEASURED) {
      printf("%12s    %s\n", c->outcome == MISSING ? "missing" : "FAILED", c->reason);
      continue;
    }
    printf("%12s    %10s - %10s", figure(median, c->median), figure(low, c->low),
           figure(high, c->high));
    if (ours->outcome == MEASURED && order[k] != us && c->median > 0) {
      printf("   %15.3g", ours->median / c->median);
    }
    putchar('\n');
  }
  if (ours->outcome == ABSENT) printf("  %-13s %12s\n", impls[OURS].name, "no such yet");
  print_gain(r, w);
  fflush(stdout);
}

bool write_json(const results *r) {
  FILE *f = fopen(r->options->json, "w");
  if (f == NULL) {
    fprintf(stderr, "bench: %s: %s\n", r->options->json, strerror(errno));
    return false;
  }
  const char *separator = "[\n";
  for (int w = 0; w < workload_count; w++) {
    for (int i = 0; i < impl_count; i++) {
      const cell *c = cell_at(r, w, i);
      if (c->outcome != MEASURED) continue;
      fprintf(f,
              "%s  {\"bench\": \"%s\", \"impl\": \"%s\", \"threads\": %d, \"unit\": \"%s\", "
              "\"median\": %.6g, \"low\": %.6g, \"high\": %.6g}",
              separator, workloads[w].name, impls[i].name, threads_of(r, w, i), workloads[w].unit,
              c->median, c->low, c->high);
      separator = ",\n";
    }
  }
  fprintf(f, "%s]\n", separator[0] == '[' ? "[" : "\n");
  return fclose(f) == 0;
}
