/* peer_glib.c - GLib's GThreadPool, with threads of its own (exclusive). */
#include "harness.h"

#include <glib.h>
#include <stdio.h>

static GThreadPool *pool;

/* What is pushed is the function to call. */
static void run(gpointer data, gpointer unused) {
  (void)unused;
  ((void (*)(void))data)();
}

static void start(int threads) {
  GError *error = NULL;
  pool = g_thread_pool_new(run, NULL, threads, TRUE, &error);
  if (error != NULL) bench_fail("glib: %s", error->message);
}

static void stop(void) {
  g_thread_pool_free(pool, FALSE, TRUE);
}

static void submit(int producer, int64_t n) {
  (void)producer;
  for (int64_t i = 0; i < n; i++) g_thread_pool_push(pool, (gpointer)bench_count, NULL);
}

static void wake(void) {
  g_thread_pool_push(pool, (gpointer)bench_woken, NULL);
}

int main(int argc, char **argv) {
  char version[64];
  snprintf(version, sizeof version, "GLib %u.%u.%u", glib_major_version, glib_minor_version,
           glib_micro_version);
  const bench_impl impl = {
      .version = version, .start = start, .stop = stop, .submit = submit, .wake = wake};
  return bench_main(argc, argv, &impl);
}
