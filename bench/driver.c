/* driver.c - runs the suite: `make bench`.
 *
 * Usage: driver --programs DIR --threads N --rounds N --only NAMES --json FILE --svg FILE
 * Exit: 0 all measured; 1 a program failed (a missing one is no failure); 2 wrong usage.
 */
#include "suite.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("bench: ", stderr);
  vfprintf(stderr, format, args);
  va_end(args);
  fputc('\n', stderr);
  exit(2);
}

static int number(const char *name, const char *text, int most) {
  char *end;
  long n = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || n < 1 || n > most) {
    usage("%s is a number from 1 to %d, not \"%s\"", name, most, text);
  }
  return (int)n;
}

static options parse(int argc, char **argv) {
  options o = {.programs = "build/bench",
               .only = "",
               .json = "build/bench.json",
               .svg = "build/bench.svg",
               .threads = 2,
               .rounds = 5};
  for (int i = 1; i < argc; i += 2) {
    const char *name = argv[i], *value = argv[i + 1];
    if (i + 1 == argc) usage("%s needs a value", name);
    if (strcmp(name, "--programs") == 0) {
      o.programs = value;
    } else if (strcmp(name, "--only") == 0) {
      o.only = value;
    } else if (strcmp(name, "--json") == 0) {
      o.json = value;
    } else if (strcmp(name, "--svg") == 0) {
      o.svg = value;
    } else if (strcmp(name, "--threads") == 0) {
      o.threads = number("BENCH_THREADS", value, 1024);
    } else if (strcmp(name, "--rounds") == 0) {
      o.rounds = number("BENCH_ROUNDS", value, 1000);
    } else {
      usage("unknown option %s", name);
    }
  }
  return o;
}

static int find_workload(const char *name, size_t length) {
  for (int w = 0; w < workload_count; w++) {
    if (strlen(workloads[w].name) == length && memcmp(workloads[w].name, name, length) == 0) {
      return w;
    }
  }
  fprintf(stderr, "bench: there is no workload \"%.*s\"; there are:", (int)length, name);
  for (int w = 0; w < workload_count; w++) fprintf(stderr, " %s", workloads[w].name);
  fputc('\n', stderr);
  exit(2);
}

static void choose(results *r) {
  const char *p = r->options->only + strspn(r->options->only, ", ");
  bool all = *p == '\0';
  for (int w = 0; w < workload_count; w++) r->wanted[w] = all;
  while (*p != '\0') {
    size_t length = strcspn(p, ", ");
    r->wanted[find_workload(p, length)] = true;
    p += length;
    p += strspn(p, ", ");
  }
}

int main(int argc, char **argv) {
  options o = parse(argc, argv);
  results r = {.options = &o};
  r.wanted = calloc((size_t)workload_count, sizeof *r.wanted);
  r.grid = calloc((size_t)(workload_count * impl_count), sizeof *r.grid);
  if (r.wanted == NULL || r.grid == NULL) usage("out of memory");
  choose(&r);

  find_machine(&r);
  print_header(&r);
  bool failed = false;
  for (int w = 0; w < workload_count; w++) {
    if (!r.wanted[w]) continue;
    run_workload(&r, w);
    print_workload(&r, w);
    for (int i = 0; i < impl_count; i++) failed |= cell_at(&r, w, i)->outcome == FAILED;
  }

  if (!write_json(&r) || !write_svg(&r)) return 1;
  printf("\nwritten: %s, %s\n", o.json, o.svg);
  for (int i = 0; i < workload_count * impl_count; i++) free(r.grid[i].samples);
  free(r.grid);
  free(r.wanted);
  return failed ? 1 : 0;
}
