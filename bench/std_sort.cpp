// std_sort.cpp - C++'s std::sort: a second sequential twin of `sort`, as qsort() pays for a
// call at each comparison.
#include "harness.h"

#include <algorithm>

static void sort(uint64_t *items, size_t n) {
  std::sort(items, items + n);
}

int main(int argc, char **argv) {
  bench_impl impl = {};
  impl.version = "libstdc++";
  impl.sort = sort;
  return bench_main(argc, argv, &impl);
}
