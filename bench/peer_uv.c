/* peer_uv.c - libuv's thread pool.
 *
 * uv_queue_work() may be called from the loop's thread only, so there is no submit4. The
 * done callbacks run in reap(): the workload asks when the tasks have been executed, and
 * running the loop while they are would cost this thread more.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

static uv_loop_t loop;
static uv_work_t *requests;

static void start(int threads) {
  char size[16];
  snprintf(size, sizeof size, "%d", threads);
  setenv("UV_THREADPOOL_SIZE", size, 1);
  requests = malloc(BENCH_TASKS * sizeof *requests);
  if (requests == NULL || uv_loop_init(&loop) != 0) bench_fail("libuv does not start");
}

static void reap(void) {
  uv_run(&loop, UV_RUN_DEFAULT);
}

static void stop(void) {
  reap();
  if (uv_loop_close(&loop) != 0) bench_fail("the loop is still busy");
  free(requests);
}

static void count(uv_work_t *request) {
  (void)request;
  bench_count();
}

static void woken(uv_work_t *request) {
  (void)request;
  bench_woken();
}

static void done(uv_work_t *request, int status) {
  (void)request;
  if (status != 0) bench_fail("libuv: %s", uv_strerror(status));
}

static void submit(int producer, int64_t n) {
  (void)producer;
  for (int64_t i = 0; i < n; i++) {
    if (uv_queue_work(&loop, &requests[i], count, done) != 0) bench_fail("uv_queue_work");
  }
}

static void wake(void) {
  if (uv_queue_work(&loop, &requests[0], woken, done) != 0) bench_fail("uv_queue_work");
}

int main(int argc, char **argv) {
  char version[64];
  snprintf(version, sizeof version, "libuv %s", uv_version_string());
  const bench_impl impl = {.version = version,
                           .start = start,
                           .stop = stop,
                           .submit = submit,
                           .wake = wake,
                           .reap = reap,
                           .one_submitter = true};
  return bench_main(argc, argv, &impl);
}
