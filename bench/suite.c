/* suite.c - the tables of workloads and implementations. A new peer is one line in impls[]. */
#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const workload workloads[] = {
    {"fib", "ns", "fib(35) without cutoff, a fork", 3, 10, 0, NULL},
    {"tree10", "us", "tree of 2,047 nodes, hot, a call", 20, 10, 0, NULL},
    {"tree15", "us", "tree of 65,535 nodes, hot, a call", 30, 10, 0, NULL},
    {"tree20", "us", "tree of 2,097,151 nodes, hot, a call", 10, 10, 0, NULL},
    {"tree10_cold", "us", "tree of 2,047 nodes after 5 ms idle", 20, 10, 0, NULL},
    {"tree15_cold", "us", "tree of 65,535 nodes after 5 ms idle", 20, 10, 0, NULL},
    {"tree20_cold", "us", "tree of 2,097,151 nodes after 5 ms idle", 10, 10, 0, NULL},
    {"submit", "ns", "1,000,000 tasks from one outside thread, a task", 2, 10, 0, NULL},
    {"submit4", "ns", "1,000,000 tasks from four outside threads, a task", 2, 10, 0, NULL},
    {"wake", "us", "post to start after 10 ms idle, submitter sleeps", 40, 10, 0, NULL},
    {"wake_busy", "us", "post to start after 10 ms idle, submitter spins", 40, 10, 0, NULL},
    {"spawn_await", "ns", "spawn a task inside the pool and await it", 2, 10, 0, NULL},
    {"yield", "ns", "100 tasks that yield 10,000 times, a yield", 3, 10, 0, NULL},
    {"sort", "ms", "sort 10,000,000 random 64-bit integers", 1, 10, 0, NULL},
    {"idle", "us", "CPU time of the process in 2 s without work", 1, 6, 0, NULL},
    {"json_roundtrip", "us", "submit a request, wait for its result: the median", 10, 10, 0, NULL},
    {"json_roundtrip_p99", "us", "the same: the 99th percentile", 10, 10, 0, NULL},
    {"json_batch1", "ns", "64-byte requests, one by one, a request", 4, 10, 0, NULL},
    {"json_batch16", "ns", "64-byte requests, 16 at once, a request", 4, 10, 0, NULL},
    {"json_batch256", "ns", "64-byte requests, 256 at once, a request", 4, 10, 0, NULL},
    {"json_parse", "ns", "parse the 64 bytes, then an empty task", 4, 10, 0, NULL},
    {"json_decode1", "ns", "requests of 4 KB that do nothing, 1 worker", 4, 10, 1, NULL},
    {"json_decode2", "ns", "requests of 4 KB that do nothing, 2 workers", 4, 10, 2, "json_decode1"},
    {"symbols1", "ns", "look a symbol up, pin and unpin it, 1 thread", 4, 10, 1, NULL},
    {"symbols2", "ns", "the same, 2 threads at once, a lookup of either", 4, 10, 2, "symbols1"},
    {"vector_topk", "us", "top 10 by cosine of 10,000 x 768 floats", 200, 10, 0, NULL},
    {"lua_spawn", "ns", "200,000 Lua functions, submitted and collected, a task", 4, 10, 0, NULL},
    {"lua_roundtrip", "us", "a Lua function, one after another, a round trip", 10, 10, 0, NULL},
    {"lua_map", "ns", "a Lua function of 1,000,000 numbers, an item", 4, 10, 0, NULL},
    {"lua_partials", "ns", "a stream from a Lua function, a partial result", 4, 10, 0, NULL},
};
const int workload_count = sizeof workloads / sizeof *workloads;

#define BATCHES   "json_batch1 json_batch16 json_batch256"
#define LUA       "lua_spawn lua_roundtrip lua_map lua_partials"
#define FORK_JOIN "fib tree10 tree15 tree20 tree10_cold tree15_cold tree20_cold "

const impl impls[] = {
    [OURS] = {"threadpool", "ours", NULL, NULL, "#c2410c", true},
    [OURS_LUA] = {"threadpool", "ours_lua", NULL, LUA, "#c2410c", true},
    [SEQUENTIAL] = {"sequential", "sequential", NULL, NULL, "#6b7280", false},
    {"parse_task", "ours", "parse_task", BATCHES, "#9ca3af", true},
    {"one_thread", "ours", "one_thread", "vector_topk", "#9ca3af", false},
    {"luajit", "peer_luajit", NULL, "vector_topk lua_map", "#1e3a8a", false},
    {"luv", "peer_luv", NULL, "lua_spawn lua_roundtrip", "#0d9488", true},
    {"std_sort", "std_sort", NULL, "sort", "#9ca3af", false},
    {"futex", "futex", NULL, "wake wake_busy", "#9ca3af", false},
    {"tbb", "peer_tbb", NULL, FORK_JOIN "submit submit4 wake wake_busy spawn_await sort idle",
     "#2563eb", true},
    {"openmp", "peer_openmp", NULL, FORK_JOIN "spawn_await idle", "#7c3aed", true},
    {"libuv", "peer_uv", NULL, "submit wake wake_busy idle", "#15803d", true},
    {"glib", "peer_glib", NULL, "submit submit4 wake wake_busy idle", "#65a30d", true},
    {"rayon", "peer_rust", "rayon", FORK_JOIN "submit submit4 wake wake_busy spawn_await sort idle",
     "#0891b2", true},
    {"rayon_join", "peer_rust", "rayon_join", "spawn_await", "#67b7c9", true},
    {"rayon_stable", "peer_rust", "rayon_stable", "sort", "#67b7c9", true},
    {"tokio", "peer_rust", "tokio", "submit submit4 wake wake_busy spawn_await yield idle",
     "#be185d", true},
};
const int impl_count = sizeof impls / sizeof *impls;

_Static_assert(sizeof impls / sizeof *impls <= IMPLS_MOST, "arrays by impl are too short");
_Static_assert(sizeof workloads / sizeof *workloads <= WORKLOADS_MOST, "those by workload too");

int threads_of(const results *r, int w, int i) {
  if (!impls[i].pool) return 1;
  return workloads[w].threads > 0 ? workloads[w].threads : r->options->threads;
}

bool has_workload(const impl *i, const char *name) {
  if (i->workloads == NULL) return true;
  size_t length = strlen(name);
  for (const char *p = i->workloads; *p != '\0';) {
    size_t word = strcspn(p, " ");
    if (word == length && memcmp(p, name, length) == 0) return true;
    p += word + strspn(p + word, " ");
  }
  return false;
}

cell *cell_at(const results *r, int w, int i) {
  return &r->grid[w * impl_count + i];
}

int ours_at(const results *r, int w) {
  return cell_at(r, w, OURS_LUA)->outcome != ABSENT ? OURS_LUA : OURS;
}

static bool goes_before(const results *r, int w, int a, int b) {
  if (a <= SEQUENTIAL || b <= SEQUENTIAL) return a < b;
  const cell *x = cell_at(r, w, a), *y = cell_at(r, w, b);
  if (x->outcome == MEASURED && y->outcome == MEASURED) return x->median < y->median;
  return x->outcome == MEASURED && y->outcome != MEASURED;
}

int shown_order(const results *r, int w, int order[]) {
  int n = 0;
  for (int i = 0; i < impl_count; i++) {
    if (cell_at(r, w, i)->outcome == ABSENT) continue;
    int at = n++;
    while (at > 0 && goes_before(r, w, i, order[at - 1])) {
      order[at] = order[at - 1];
      at--;
    }
    order[at] = i;
  }
  return n;
}

const char *figure(char buffer[32], double value) {
  double size = fabs(value);
  int decimals = size < 1 ? 3 : size < 10 ? 2 : size < 100 ? 1 : 0;
  snprintf(buffer, 32, "%.*f", decimals, value);
  return buffer;
}
