/* vector_template.h - the kernels for one width of vector registers. Included once for each by vector_kernels.c.
 *
 * Defined by the includer: KERNEL(name) gives the functions their names, TARGET the attribute for the compiler, PER the
 * floats of a register, EACH(STEP) = STEP(0) STEP(1) ... for the LANES / PER registers of a step, FOLD(s) the sum of s0,
 * s1, ..., of which each sum is of registers whose lanes are half of the lanes apart, then a quarter, and so on.
 *
 * A step adds LANES products to LANES sums that do not depend on each other. Without -ffast-math the compiler may not
 * change the order of additions; here it need not. What is left behind the last step is a step too, filled with zeros.
 */

typedef float KERNEL(vector) __attribute__((vector_size(4 * PER)));
/* The same in memory, as aligned as a float is. */
typedef float KERNEL(unaligned) __attribute__((vector_size(4 * PER), aligned(4), may_alias));
typedef int32_t KERNEL(mask) __attribute__((vector_size(4 * PER)));

#define AT(p, r) (*(const KERNEL(unaligned) *)((p) + (r)*PER))

#define FOR_EACH_STEP(STEP)                                                                        \
  int64_t i = 0;                                                                                   \
  for (; i + LANES <= n; i += LANES) {                                                             \
    const float *pa = a + i, *pb = b + i;                                                          \
    EACH(STEP)                                                                                     \
  }                                                                                                \
  if (i < n) {                                                                                     \
    float pa[LANES] = {0}, pb[LANES] = {0};                                                        \
    for (int64_t j = i; j < n; j++) pa[j - i] = a[j], pb[j - i] = b[j];                            \
    EACH(STEP)                                                                                     \
  }

/* The sum of all lanes, by halves: 0 and 16, 1 and 17, ...; of these 0 and 8, ... FOLD has done it down to PER. */
TARGET static float KERNEL(total)(KERNEL(vector) folded) {
  float lane[PER];
  memcpy(lane, &folded, sizeof lane);
  for (int n = PER / 2; n > 0; n /= 2)
    for (int j = 0; j < n; j++) lane[j] += lane[j + n];
  return lane[0];
}

#define ZERO(r) KERNEL(vector) s##r = {0};

#define DOT(r) s##r += AT(pa, r) * AT(pb, r);
TARGET static void KERNEL(dot)(const float *a, const float *b, int64_t n, float out[2]) {
  EACH(ZERO)
  FOR_EACH_STEP(DOT)
  out[0] = KERNEL(total)(FOLD(s));
  out[1] = 0;
}
#undef DOT

#define ZERO_SQUARE(r) KERNEL(vector) t##r = {0};
#define DOT_SQUARES(r)                                                                             \
  {                                                                                                \
    KERNEL(vector) x = AT(pa, r);                                                                  \
    s##r += x * AT(pb, r);                                                                         \
    t##r += x * x;                                                                                 \
  }
TARGET static void KERNEL(dot_squares)(const float *a, const float *b, int64_t n, float out[2]) {
  EACH(ZERO)
  EACH(ZERO_SQUARE)
  FOR_EACH_STEP(DOT_SQUARES)
  out[0] = KERNEL(total)(FOLD(s));
  out[1] = KERNEL(total)(FOLD(t));
}
#undef ZERO_SQUARE
#undef DOT_SQUARES

#define DISTANCE(r)                                                                                \
  {                                                                                                \
    KERNEL(vector) d = AT(pa, r) - AT(pb, r);                                                      \
    s##r += d * d;                                                                                 \
  }
TARGET static void KERNEL(distance)(const float *a, const float *b, int64_t n, float out[2]) {
  EACH(ZERO)
  FOR_EACH_STEP(DISTANCE)
  out[0] = KERNEL(total)(FOLD(s));
  out[1] = 0;
}
#undef DISTANCE

#define SCALE(r) *(KERNEL(unaligned) *)(a + i + (r)*PER) = AT(a + i, r) * by;
TARGET static void KERNEL(scale)(float *a, int64_t n, float by) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    EACH(SCALE)
  }
  for (; i < n; i++) a[i] *= by;
}
#undef SCALE

/* A comparison with NaN is false: the lane keeps what it has. */
#define STORE(r) *(KERNEL(unaligned) *)(lane + (r)*PER) = s##r;
#define LEAST(r) KERNEL(vector) s##r = (KERNEL(vector)){0} - INFINITY;
#define MOST(r)                                                                                    \
  {                                                                                                \
    KERNEL(vector) x = AT(a + i, r) * sign;                                                        \
    KERNEL(mask) greater = x > s##r;                                                               \
    s##r = (KERNEL(vector))(((KERNEL(mask))x & greater) | ((KERNEL(mask))s##r & ~greater));        \
  }
TARGET static float KERNEL(most)(const float *a, int64_t n, float sign) {
  float lane[LANES], most = -INFINITY;
  EACH(LEAST)
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    EACH(MOST)
  }
  EACH(STORE)
  for (int j = 0; j < LANES; j++) most = lane[j] > most ? lane[j] : most;
  for (; i < n; i++) most = a[i] * sign > most ? a[i] * sign : most;
  return most;
}
#undef STORE
#undef LEAST
#undef MOST

static const tp_kernels KERNEL(kernels) = {.name = KERNEL_NAME,
                                           .sum = {[TP_DOT] = KERNEL(dot),
                                                   [TP_DOT_SQUARES] = KERNEL(dot_squares),
                                                   [TP_SQUARES] = KERNEL(dot),
                                                   [TP_DISTANCE] = KERNEL(distance)},
                                           .scale = KERNEL(scale),
                                           .most = KERNEL(most)};

#undef AT
#undef FOR_EACH_STEP
#undef ZERO
#undef KERNEL
#undef KERNEL_NAME
#undef TARGET
#undef PER
#undef EACH
#undef FOLD
