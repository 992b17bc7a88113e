/* peer_openmp.c - the compiler's OpenMP tasks.
 *
 * A call from outside is a parallel region in which one thread runs the root. There is no
 * submit and no wake: OpenMP's tasks are made by members of the team, not from outside.
 */
#include "harness.h"

#include <omp.h>
#include <stdio.h>

static int64_t fib_call(int n) {
  if (n < 2) return n;
  int64_t left, right;
#pragma omp task shared(left) firstprivate(n) default(none)
  left = fib_call(n - 1);
  right = fib_call(n - 2);
#pragma omp taskwait
  return left + right;
}

static int64_t fib(int n) {
  int64_t result = 0;
#pragma omp parallel shared(result) firstprivate(n) default(none)
#pragma omp single
  result = fib_call(n);
  return result;
}

static int64_t tree_call(int depth) {
  BENCH_NODE(depth);
  if (depth == 0) return 1;
  int64_t left, right;
#pragma omp task shared(left) firstprivate(depth) default(none)
  left = tree_call(depth - 1);
  right = tree_call(depth - 1);
#pragma omp taskwait
  return 1 + left + right;
}

static int64_t tree(int depth) {
  int64_t result = 0;
#pragma omp parallel shared(result) firstprivate(depth) default(none)
#pragma omp single
  result = tree_call(depth);
  return result;
}

static void spawn_await(int64_t n) {
#pragma omp parallel firstprivate(n) default(none)
#pragma omp single
  for (int64_t i = 0; i < n; i++) {
#pragma omp task default(none)
    bench_count();
#pragma omp taskwait
  }
}

static void start(int threads) {
  omp_set_dynamic(0);
  omp_set_num_threads(threads);
}

int main(int argc, char **argv) {
  char version[64];
  snprintf(version, sizeof version, "OpenMP %d (%s)", _OPENMP,
#ifdef __clang__
           "libomp"
#else
           "libgomp"
#endif
  );
  const bench_impl impl = {
      .version = version, .start = start, .fib = fib, .tree = tree, .spawn_await = spawn_await};
  return bench_main(argc, argv, &impl);
}
