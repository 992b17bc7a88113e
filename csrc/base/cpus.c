#include "base/cpus.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

unsigned tp_cpus_of_quota(const char *cpu_max) {
  long quota = 0, period = 0;
  if (sscanf(cpu_max, "%ld %ld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
  long cpus = quota / period + (quota % period != 0);
  return cpus < INT_MAX ? (unsigned)cpus : INT_MAX;
}

static bool read_text(const char *path, char *text, size_t size) {
  FILE *f = fopen(path, "re");
  if (!f) return false;
  size_t n = fread(text, 1, size - 1, f);
  text[n] = '\0';
  fclose(f);
  return n > 0;
}

/* cgroup v2: the limit of every group from ours up to the root holds; the least one counts. */
static unsigned quota_v2(void) {
  char text[4096], path[4300];
  if (!read_text("/proc/self/cgroup", text, sizeof text)) return 0;
  char *group = strstr(text, "0::/");
  if (!group) return 0;
  group += 3;
  group[strcspn(group, "\n")] = '\0';
  unsigned least = 0;
  for (;;) {
    char limit[128];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    unsigned n = read_text(path, limit, sizeof limit) ? tp_cpus_of_quota(limit) : 0;
    if (n && (!least || n < least)) least = n;
    char *slash = strrchr(group, '/');
    if (!slash || group[0] == '\0') return least;
    *slash = '\0';
  }
}

static unsigned quota_v1(void) {
  char quota[64], period[64], both[132];
  if (!read_text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota, sizeof quota) ||
      !read_text("/sys/fs/cgroup/cpu/cpu.cfs_period_us", period, sizeof period))
    return 0;
  snprintf(both, sizeof both, "%s %s", quota, period);
  return tp_cpus_of_quota(both);
}

unsigned tp_cpus_available(void) {
  cpu_set_t set;
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  unsigned n = online > 0 ? (unsigned)online : 1;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
    n = (unsigned)CPU_COUNT(&set);
  unsigned quota = quota_v2();
  if (!quota) quota = quota_v1();
  return quota && quota < n ? quota : n;
}

int tp_cpus_nth(const cpu_set_t *set, unsigned n) {
  if (CPU_COUNT(set) == 0) return -1;
  n %= (unsigned)CPU_COUNT(set);
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, set) && n-- == 0) return cpu;
  return -1;
}
