/* futex.c - the floor of `wake`: one thread blocked in a futex, nothing above it. */
#define _GNU_SOURCE
#include "harness.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EMPTY, POSTED, STOP };

static _Atomic uint32_t word;
static pthread_t thread;

static void *run(void *unused) {
  (void)unused;
  for (;;) {
    uint32_t seen = atomic_load(&word);
    if (seen == STOP) return NULL;
    if (seen == POSTED) {
      atomic_store(&word, EMPTY); /* the next post comes after bench_woken() only */
      bench_woken();
    } else {
      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, EMPTY, NULL, NULL, 0);
    }
  }
}

static void post(uint32_t value) {
  atomic_store(&word, value);
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void start(int threads) {
  (void)threads;
  if (pthread_create(&thread, NULL, run, NULL) != 0) bench_fail("no thread");
}

static void stop(void) {
  post(STOP);
  pthread_join(thread, NULL);
}

static void wake(void) {
  post(POSTED);
}

int main(int argc, char **argv) {
  const bench_impl impl = {
      .version = "Linux futex, no pool", .start = start, .stop = stop, .wake = wake};
  return bench_main(argc, argv, &impl);
}
