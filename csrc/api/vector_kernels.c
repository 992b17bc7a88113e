/* vector_kernels.c - vector_template.h for each width, the choice between them, and sums over long vectors. */
#include "api/vector_kernels.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Floats that are added to sums of their own at once: enough to hide the latency of an addition. */
enum { LANES = 32 };

#define KERNEL(name) plain_##name
#define KERNEL_NAME  "16 bytes"
#define TARGET
#define PER        4
#define EACH(STEP) STEP(0) STEP(1) STEP(2) STEP(3) STEP(4) STEP(5) STEP(6) STEP(7)
#define FOLD(s)    (((s##0 + s##4) + (s##2 + s##6)) + ((s##1 + s##5) + (s##3 + s##7)))
#include "api/vector_template.h"

/* By a pointer instead of target_clones: works with every compiler, C library and sanitizer. Without FMA, which rounds
 * once where the others round twice: memory is what limits here, and sets that agree are worth more. */
#if defined(__x86_64__)
#define WIDE         1
#define KERNEL(name) wide_##name
#define KERNEL_NAME  "32 bytes"
#define TARGET       __attribute__((target("avx2")))
#define PER          8
#define EACH(STEP)   STEP(0) STEP(1) STEP(2) STEP(3)
#define FOLD(s)      ((s##0 + s##2) + (s##1 + s##3))
#include "api/vector_template.h"
#endif

const tp_kernels *tp_kernels_at(int set) {
  if (set == 0) return &plain_kernels;
#ifdef WIDE
  if (set == 1 && __builtin_cpu_supports("avx2")) return &wide_kernels;
#endif
  return NULL;
}

const tp_kernels *tp_kernels_best(void) {
  const tp_kernels *k = tp_kernels_at(1);
  return k ? k : tp_kernels_at(0);
}

/* --- sums */

int64_t tp_chunk_length(int64_t n) {
  int64_t blocks = n / TP_BLOCK + (n % TP_BLOCK != 0);
  int64_t in_chunk = blocks / TP_CHUNKS_MOST + (blocks % TP_CHUNKS_MOST != 0);
  return in_chunk > 1 ? in_chunk * TP_BLOCK : TP_BLOCK;
}

tp_pair tp_sum_chunk(const tp_kernels *k, tp_sum what, const float *a, const float *b,
                     int64_t begin, int64_t end) {
  tp_pair sum = {{0, 0}};
  for (int64_t i = begin; i < end; i += TP_BLOCK) {
    float part[2];
    k->sum[what](a + i, b + i, end - i < TP_BLOCK ? end - i : TP_BLOCK, part);
    sum.of[0] += (double)part[0];
    sum.of[1] += (double)part[1];
  }
  return sum;
}

tp_pair tp_sum_all(const tp_kernels *k, tp_sum what, const float *a, const float *b, int64_t n) {
  if (n <= TP_BLOCK) return tp_sum_checked(tp_sum_chunk(k, what, a, b, 0, n), what, a, b, n);
  int64_t length = tp_chunk_length(n);
  tp_pair sum = {{0, 0}};
  for (int64_t i = 0; i < n; i += length) {
    tp_pair part = tp_sum_chunk(k, what, a, b, i, n - i < length ? n : i + length);
    sum.of[0] += part.of[0];
    sum.of[1] += part.of[1];
  }
  return tp_sum_checked(sum, what, a, b, n);
}

/* Squares below this may have lost digits, or all of them, as numbers that are not normal. */
static const double TINY = 1e-30;

static bool is_lost(double sum, bool of_squares) {
  return !isfinite(sum) || (of_squares && sum < TINY);
}

tp_pair tp_sum_checked(tp_pair sum, tp_sum what, const float *a, const float *b, int64_t n) {
  if (!is_lost(sum.of[0], what == TP_SQUARES || what == TP_DISTANCE) &&
      !is_lost(sum.of[1], what == TP_DOT_SQUARES))
    return sum;
  sum = (tp_pair){{0, 0}};
  for (int64_t i = 0; i < n; i++) {
    double x = (double)a[i];
    switch (what) {
    case TP_DOT: sum.of[0] += x * (double)b[i]; break;
    case TP_DOT_SQUARES:
      sum.of[0] += x * (double)b[i];
      sum.of[1] += x * x;
      break;
    case TP_SQUARES: sum.of[0] += x * x; break;
    default: sum.of[0] += (x - (double)b[i]) * (x - (double)b[i]); break;
    }
  }
  return sum;
}

double tp_cosine_of(double dot, double a, double b) {
  if (a == 0 || b == 0) return isnan(dot) ? dot : 0;
  double cosine = dot / sqrt(a * b); /* b = a: sqrt(a * a) is a */
  return cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
}
