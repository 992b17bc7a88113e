/* sort_template.h - a stable parallel merge sort for one type. Included once for each by sched/sort.c.
 *
 * Defined by the includer: SORT(name) gives the functions their names, TYPE, LESS(a, b, ctx).
 *
 * The two halves are sorted into the other buffer, then merged back; both the halves and the merges are
 * forked. Equal halves are merged from both ends at once: two chains of dependent loads instead of one,
 * and no branch that depends on the data (a branch here is mispredicted half the time).
 */

typedef struct SORT(args) {
  TYPE *from, *other; /* sort `from`, with `other` as the second buffer ... */
  size_t n;
  bool into_other; /* ... and leave the result there */
  void *ctx;
} SORT(args);

typedef struct SORT(merge_args) {
  const TYPE *a, *b;
  size_t na, nb;
  TYPE *out;
  void *ctx;
} SORT(merge_args);

static void SORT(insertion)(TYPE *a, size_t n, void *ctx) {
  (void)ctx;
  for (size_t i = 1; i < n; i++) {
    TYPE x = a[i];
    size_t j = i;
    for (; j > 0 && LESS(x, a[j - 1], ctx); j--) a[j] = a[j - 1];
    a[j] = x;
  }
}

/* Runs of any length; stable: of equals those of `a` come first. */
static void SORT(merge_any)(const TYPE *a, size_t na, const TYPE *b, size_t nb, TYPE *out,
                            void *ctx) {
  (void)ctx;
  while (na > 0 && nb > 0) {
    bool right = LESS(*b, *a, ctx);
    *out++ = right ? *b : *a;
    a += !right;
    na -= !right;
    b += right;
    nb -= right;
  }
  memcpy(out, a, na * sizeof *a);
  memcpy(out + na, b, nb * sizeof *b);
}

/* The runs [a, a + n/2) and [a + n/2, a + n), which differ by one at most: half from the front, half from
 * the back. Neither end can leave its run within that many steps. */
static void SORT(merge_halves)(const TYPE *a, size_t n, TYPE *out, void *ctx) {
  (void)ctx;
  size_t half = n / 2;
  const TYPE *l = a, *r = a + half, *le = r - 1, *re = a + n - 1;
  TYPE *front = out, *back = out + n - 1;
  if (!LESS(*r, *le, ctx)) { /* in order already */
    memcpy(out, a, n * sizeof *a);
    return;
  }
  for (size_t i = 0; i < half; i++) {
    bool right = LESS(*r, *l, ctx);
    *front++ = right ? *r : *l;
    r += right;
    l += !right;
    bool left = LESS(*re, *le, ctx);
    *back-- = left ? *le : *re;
    le -= left;
    re -= !left;
  }
  if (n & 1) *front = l <= le ? *l : *r; /* what neither end has taken */
}

static void SORT(sequential)(TYPE *from, TYPE *other, size_t n, bool into_other, void *ctx) {
  if (n <= SORT_INSERTION) {
    SORT(insertion)(from, n, ctx);
    if (into_other) memcpy(other, from, n * sizeof *from);
    return;
  }
  size_t half = n / 2;
  SORT(sequential)(from, other, half, !into_other, ctx);
  SORT(sequential)(from + half, other + half, n - half, !into_other, ctx);
  if (into_other)
    SORT(merge_halves)(from, n, other, ctx);
  else
    SORT(merge_halves)(other, n, from, ctx);
}

/* The first element of the run for which x belongs before it: before equals (`left`), or after them. */
static size_t SORT(position)(const TYPE *run, size_t n, TYPE x, bool left, void *ctx) {
  (void)ctx;
  size_t low = 0;
  while (n > 0) {
    size_t half = n / 2;
    bool after = left ? LESS(run[low + half], x, ctx) : !LESS(x, run[low + half], ctx);
    if (after) low += half + 1;
    n = after ? n - half - 1 : half;
  }
  return low;
}

static void SORT(merge)(threadpool_worker *w, void *arg) {
  SORT(merge_args) m = *(SORT(merge_args) *)arg;
  if (m.na + m.nb <= SORT_PIECE) {
    SORT(merge_any)(m.a, m.na, m.b, m.nb, m.out, m.ctx);
    return;
  }
  /* Cut the longer run in the middle and the other one where that element belongs. */
  size_t ca, cb;
  if (m.na >= m.nb) {
    ca = m.na / 2;
    cb = SORT(position)(m.b, m.nb, m.a[ca], true, m.ctx); /* equals in b come after a[ca] */
  } else {
    cb = m.nb / 2;
    ca = SORT(position)(m.a, m.na, m.b[cb], false, m.ctx); /* equals in a come before b[cb] */
  }
  SORT(merge_args) left = {m.a, m.b, ca, cb, m.out, m.ctx};
  SORT(merge_args) right = {m.a + ca, m.b + cb, m.na - ca, m.nb - cb, m.out + ca + cb, m.ctx};
  threadpool_job job;
  threadpool_fork(w, &job, SORT(merge), &right);
  SORT(merge)(w, &left);
  threadpool_sync(w, &job);
}

static void SORT(run)(threadpool_worker *w, void *arg) {
  SORT(args) s = *(SORT(args) *)arg;
  if (s.n <= SORT_PIECE) {
    SORT(sequential)(s.from, s.other, s.n, s.into_other, s.ctx);
    return;
  }
  size_t half = s.n / 2;
  SORT(args) left = {s.from, s.other, half, !s.into_other, s.ctx};
  SORT(args) right = {s.from + half, s.other + half, s.n - half, !s.into_other, s.ctx};
  threadpool_job job;
  threadpool_fork(w, &job, SORT(run), &right);
  SORT(run)(w, &left);
  threadpool_sync(w, &job);
  TYPE *in = s.into_other ? s.from : s.other, *out = s.into_other ? s.other : s.from;
  SORT(merge_args) m = {in, in + half, half, s.n - half, out, s.ctx};
  /* While others are busy, merging both ends at once beats merging pieces. */
  if (threadpool_enough(w))
    SORT(merge_halves)(in, s.n, out, s.ctx);
  else
    SORT(merge)(w, &m);
}

#undef SORT
#undef TYPE
#undef LESS
