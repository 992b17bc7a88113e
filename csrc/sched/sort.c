/* sort.c - threadpool_sort and its kin: sort_template.h for numbers and for pointers. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/alloc.h"
#include "sched/sched.h"

enum { SORT_INSERTION = 20, SORT_PIECE = 8192 };

#define SORT(name)      i64_##name
#define TYPE            int64_t
#define LESS(a, b, ctx) ((a) < (b))
#include "sched/sort_template.h"

#define SORT(name)      u64_##name
#define TYPE            uint64_t
#define LESS(a, b, ctx) ((a) < (b))
#include "sched/sort_template.h"

/* NaN is behind everything, and equal to itself. */
#define SORT(name)      f64_##name
#define TYPE            double
#define LESS(a, b, ctx) ((a) < (b) || ((b) != (b) && (a) == (a)))
#include "sched/sort_template.h"

typedef const char *element;

typedef struct order {
  threadpool_compare_fn compare;
  void *arg;
} order;

static bool pointer_less(const char *a, const char *b, const order *o) {
  return o->compare(a, b, o->arg) < 0;
}

#define SORT(name)      pointer_##name
#define TYPE            element
#define LESS(a, b, ctx) pointer_less((a), (b), (ctx))
#include "sched/sort_template.h"

static bool inside(threadpool_worker *w) {
  return w && tp_worker_of(w) == tp_self();
}

/* Not tp_alloc: it would clear what is going to be overwritten. */
static void *buffer(size_t n, size_t size) {
  if (n > SIZE_MAX / size || tp_fail_now()) return NULL;
  return malloc(n * size);
}

#define SORT_NUMBERS(name, type)                                                                   \
  int threadpool_sort_##name(threadpool_worker *w, type *base, size_t n) {                         \
    if (!base && n) return ERR_INVALID_ARGUMENT;                                                   \
    if (!inside(w)) return ERR_WRONG_THREAD;                                                       \
    if (n < 2) return 0;                                                                           \
    type *other = buffer(n, sizeof *other);                                                        \
    if (!other) return ERR_MALLOC_FAILED;                                                          \
    name##_args a = {base, other, n, false, NULL};                                                 \
    name##_run(w, &a);                                                                             \
    free(other);                                                                                   \
    return 0;                                                                                      \
  }
SORT_NUMBERS(i64, int64_t)
SORT_NUMBERS(u64, uint64_t)
SORT_NUMBERS(f64, double)

typedef struct gather {
  const char **from;
  char *to;
  size_t size;
} gather;

static void gather_range(threadpool_worker *w, int64_t begin, int64_t end, void *arg) {
  (void)w;
  gather *g = arg;
  for (int64_t i = begin; i < end; i++) memcpy(g->to + (size_t)i * g->size, g->from[i], g->size);
}

int threadpool_sort(threadpool_worker *w, void *base, size_t n, size_t size,
                    threadpool_compare_fn compare, void *arg) {
  if (!compare || size == 0 || (!base && n) || n > INT64_MAX / size) return ERR_INVALID_ARGUMENT;
  if (!inside(w)) return ERR_WRONG_THREAD;
  if (n < 2) return 0;
  /* Sort pointers to the elements, then put the elements in their order. */
  const char **pointers = buffer(n, sizeof *pointers), **other = buffer(n, sizeof *other);
  char *copy = buffer(n, size);
  if (pointers && other && copy) {
    for (size_t i = 0; i < n; i++) pointers[i] = (const char *)base + i * size;
    order o = {compare, arg};
    pointer_args a = {pointers, other, n, false, &o};
    pointer_run(w, &a);
    gather g = {pointers, copy, size};
    threadpool_for(w, 0, (int64_t)n, 0, gather_range, &g);
    memcpy(base, copy, n * size);
  }
  bool done = pointers && other && copy;
  free(pointers);
  free(other);
  free(copy);
  return done ? 0 : ERR_MALLOC_FAILED;
}
