/* cpus.h - how many processors this process may really use. */
#ifndef TP_BASE_CPUS_H
#define TP_BASE_CPUS_H

#include <sched.h>

/* [any] CPUs of the affinity mask, cut down by the cgroup's CPU quota (v2 and v1), at least 1. */
unsigned tp_cpus_available(void);

/* [any] The quota in whole CPUs, rounded up, that a cgroup file's text states: v2's "max 100000" or
 * "150000 100000"; 0 = no limit or not readable. Separate so that a test can give it texts. */
unsigned tp_cpus_of_quota(const char *cpu_max);

/* [any] The nth CPU of the set, wrapping around; -1 if it is empty. */
int tp_cpus_nth(const cpu_set_t *set, unsigned n);

#endif
