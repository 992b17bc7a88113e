/* run.c - calls the programs, in rounds, and collects what they print.
 *
 * In each round every program runs once, and the order is rotated from round to round: what else
 * happens on the machine hits all of them alike, and nobody always runs after the same neighbour.
 */
#define _GNU_SOURCE
#include "suite.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NO_SUCH_WORKLOAD = 77, NO_SUCH_LIBRARY = 127 /* the loader's word */, TIME_LIMIT_S = 120 };

/* -- one program ------------------------------------------------------------------------- */

static void fail(cell *c, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(c->reason, sizeof c->reason, format, args);
  va_end(args);
  c->outcome = FAILED;
}

static void add_sample(cell *c, double value) {
  if (c->count == c->capacity) {
    c->capacity = c->capacity == 0 ? 64 : 2 * c->capacity;
    c->samples = realloc(c->samples, c->capacity * sizeof *c->samples);
    if (c->samples == NULL) abort();
  }
  c->samples[c->count++] = value;
}

/* Each line has to be one number; false: one is not. */
static bool read_samples(cell *c, FILE *from) {
  char line[256];
  bool good = true;
  while (fgets(line, sizeof line, from) != NULL) {
    char *end;
    double value = strtod(line, &end);
    if (end == line || *end != '\n' || !isfinite(value)) {
      good = false;
    } else {
      add_sample(c, value);
    }
  }
  return good;
}

static void program_path(char *path, size_t size, const results *r, int i, const char *suffix) {
  snprintf(path, size, "%s/%s%s", r->options->programs, impls[i].program, suffix);
}

/* Starts `program [argument] workload threads samples`; its output comes from *out. */
static pid_t start_program(const results *r, int w, int i, FILE **out) {
  char path[4096], threads[16], samples[16];
  program_path(path, sizeof path, r, i, "");
  snprintf(threads, sizeof threads, "%d", threads_of(r, w, i));
  snprintf(samples, sizeof samples, "%d", workloads[w].samples);

  char *argv[6], **p = argv;
  *p++ = path;
  if (impls[i].argument != NULL) *p++ = (char *)impls[i].argument;
  *p++ = (char *)workloads[w].name;
  *p++ = threads;
  *p++ = samples;
  *p = NULL;

  int ends[2];
  if (pipe(ends) != 0) return -1;
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    alarm(TIME_LIMIT_S); /* outlives exec: a program that hangs is killed */
    execv(path, argv);
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    _exit(127);
  }
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    return -1;
  }
  *out = fdopen(ends[0], "r");
  return child;
}

static void run_once(results *r, int w, int i) {
  cell *c = cell_at(r, w, i);
  size_t before = c->count;
  FILE *out = NULL;
  pid_t child = start_program(r, w, i, &out);
  if (child < 0 || out == NULL) {
    fail(c, "cannot be started: %s", strerror(errno));
    return;
  }
  bool good = read_samples(c, out);
  fclose(out);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }

  if (WIFSIGNALED(status)) {
    int signal = WTERMSIG(status);
    if (signal == SIGALRM) {
      fail(c, "not done after %d s", TIME_LIMIT_S);
    } else {
      fail(c, "killed: %s", strsignal(signal));
    }
  } else if (WEXITSTATUS(status) == NO_SUCH_WORKLOAD) {
    c->outcome = ABSENT;
  } else if (WEXITSTATUS(status) != 0) {
    fail(c, "exit %d, see above", WEXITSTATUS(status));
  } else if (!good) {
    fail(c, "printed something that is no number");
  } else if (c->count == before) {
    fail(c, "printed no sample");
  } else {
    c->outcome = MEASURED;
  }
}

/* -- rounds ------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Linear between the two nearest samples. */
static double percentile(const cell *c, double p) {
  double at = p * (double)(c->count - 1);
  size_t i = (size_t)at;
  if (i + 1 >= c->count) return c->samples[c->count - 1];
  return c->samples[i] + (at - (double)i) * (c->samples[i + 1] - c->samples[i]);
}

static void progress(const char *workload, int round, int rounds) {
  if (!isatty(STDERR_FILENO)) return;
  if (workload == NULL) {
    fprintf(stderr, "\r%60s\r", "");
  } else {
    fprintf(stderr, "\r%s: round %d of %d ", workload, round, rounds);
  }
  fflush(stderr);
}

void run_workload(results *r, int w) {
  int chosen[IMPLS_MOST], n = 0;
  for (int i = 0; i < impl_count; i++) {
    cell *c = cell_at(r, w, i);
    if (!has_workload(&impls[i], workloads[w].name)) continue;
    if (r->machine.missing[i]) {
      c->outcome = MISSING;
      snprintf(c->reason, sizeof c->reason, "%s", r->machine.versions[i]);
    } else {
      chosen[n++] = i;
    }
  }

  int rounds = (r->options->rounds * workloads[w].rounds_tenths + 9) / 10;
  for (int round = 0; round < rounds; round++) {
    progress(workloads[w].name, round + 1, rounds);
    for (int k = 0; k < n; k++) {
      int i = chosen[(k + round) % n];
      if (round > 0 && cell_at(r, w, i)->outcome != MEASURED) continue;
      run_once(r, w, i);
    }
  }
  progress(NULL, 0, 0);

  for (int k = 0; k < n; k++) {
    cell *c = cell_at(r, w, chosen[k]);
    if (c->outcome != MEASURED) continue;
    qsort(c->samples, c->count, sizeof *c->samples, compare);
    c->low = percentile(c, 0.1);
    c->median = percentile(c, 0.5);
    c->high = percentile(c, 0.9);
  }
}

/* -- the machine ------------------------------------------------------------------------- */

/* The first line a shell command prints, empty if there is none. Returns its exit status. */
static int first_line(char *line, size_t size, const char *command) {
  line[0] = '\0';
  FILE *from = popen(command, "r");
  if (from == NULL) return -1;
  if (fgets(line, (int)size, from) == NULL) line[0] = '\0';
  line[strcspn(line, "\n")] = '\0';
  int status = pclose(from);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void find_version(results *r, int i) {
  char path[4096], command[5000];
  char *version = r->machine.versions[i];
  size_t size = sizeof r->machine.versions[i];

  program_path(path, sizeof path, r, i, "");
  if (access(path, X_OK) == 0) {
    const char *argument = impls[i].argument != NULL ? impls[i].argument : "";
    snprintf(command, sizeof command, "'%s' %s version 2>/dev/null", path, argument);
    if (first_line(version, size, command) != NO_SUCH_LIBRARY) return;
  }
  r->machine.missing[i] = true;
  program_path(path, sizeof path, r, i, ".missing");
  snprintf(command, sizeof command, "cat '%s' 2>/dev/null", path);
  first_line(version, size, command);
  if (version[0] == '\0')
    snprintf(version, size, "%s is not built, or a library of it is gone", impls[i].program);
}

void find_machine(results *r) {
  machine *m = &r->machine;
  char line[3][80];
  first_line(m->cpu, sizeof m->cpu, "sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo");
  if (m->cpu[0] == '\0') first_line(m->cpu, sizeof m->cpu, "uname -m");
  first_line(line[0], sizeof line[0], "${CC:-cc} --version 2>/dev/null");
  first_line(line[1], sizeof line[1], "${CXX:-c++} --version 2>/dev/null");
  first_line(line[2], sizeof line[2], "rustc --version 2>/dev/null");
  snprintf(m->compilers, sizeof m->compilers, "%s; %s; %s", line[0],
           line[1][0] != '\0' ? line[1] : "no C++ compiler",
           line[2][0] != '\0' ? line[2] : "no rustc");
  m->cpus = (int)sysconf(_SC_NPROCESSORS_ONLN);
  if (getloadavg(&m->load, 1) != 1) m->load = 0;
  for (int i = 0; i < impl_count; i++) find_version(r, i);
}
