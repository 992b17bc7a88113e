/* sequential.c - the twin of each workload without a pool: the same work, called in place. */
#include "harness.h"
#include "parse.h"

#include <math.h>
#include <stdlib.h>

/* As opaque as a task's function is to a scheduler: the compiler may not inline it away. */
static void (*volatile task)(void) = bench_count;

static int64_t fib_call(int n) {
  return n < 2 ? n : fib_call(n - 1) + fib_call(n - 2);
}

/* Not pure to the caller, so that its calls stay between the two readings of the clock. */
static int64_t fib(int n) {
  volatile int given = n;
  volatile int64_t result = fib_call(given);
  return result;
}

static int64_t tree(int depth) {
  BENCH_NODE(depth);
  return depth == 0 ? 1 : 1 + tree(depth - 1) + tree(depth - 1);
}

static void submit(int producer, int64_t n) {
  (void)producer;
  for (int64_t i = 0; i < n; i++) task();
}

static void spawn_await(int64_t n) {
  submit(0, n);
}

/* Round robin over small state machines: what a scheduler without threads would do. */
static void yield(int tasks, int times) {
  int *left = malloc((size_t)tasks * sizeof *left);
  if (left == NULL) bench_fail("out of memory");
  for (int i = 0; i < tasks; i++) left[i] = times;
  for (int running = tasks; running > 0;) {
    for (int i = 0; i < tasks; i++) {
      if (left[i] == 0) continue;
      task();
      if (--left[i] == 0) running--;
    }
  }
  free(left);
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void sort(uint64_t *items, size_t n) {
  qsort(items, n, sizeof *items, compare);
}

/* What an operation is to a pool: a function found by its name. */
static char *echo(yyjson_val *args, size_t *length) {
  char *text = yyjson_val_write(args, 0, length);
  if (text == NULL) bench_fail("out of memory");
  return text;
}
static char *nothing(yyjson_val *args, size_t *length) {
  (void)args;
  *length = 0;
  return NULL;
}
static const struct {
  const char *name;
  char *(*run)(yyjson_val *args, size_t *length);
} operations[] = {{"nothing", nothing}, {"echo", echo}};

static void request(const bench_request *r) {
  parsed p = parse_copy(r->text, r->length);
  yyjson_val *root = yyjson_doc_get_root(p.doc), *op = yyjson_obj_get(root, "op");
  size_t i = 0, length;
  while (i < 2 && !yyjson_equals_str(op, operations[i].name)) i++;
  if (i == 2) bench_fail("unknown operation");
  char *result = operations[i].run(yyjson_obj_get(root, "args"), &length);
  bench_check(r, result, length);
  free(result);
  parse_free(&p);
}

static int64_t batch(const bench_request *r, int64_t n, int batch) {
  (void)batch;
  for (int64_t i = 0; i < n; i++) request(r);
  return n;
}

static void parse(const bench_request *r, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    parsed p = parse_copy(r->text, r->length);
    parse_free(&p);
    task();
  }
}

static void topk(const bench_matrix *m, int k, int64_t *indices, float *scores) {
  float of_query = 0;
  for (int64_t j = 0; j < m->dim; j++) of_query += m->query[j] * m->query[j];
  int found = 0;
  for (int64_t i = 0; i < m->rows; i++) {
    const float *row = m->data + i * m->dim;
    float dot = 0, square = 0;
    for (int64_t j = 0; j < m->dim; j++) {
      dot += row[j] * m->query[j];
      square += row[j] * row[j];
    }
    float score = dot / sqrtf(square * of_query);
    if (found == k && score <= scores[k - 1]) continue;
    int at = found < k ? found++ : k - 1;
    for (; at > 0 && scores[at - 1] < score; at--) {
      scores[at] = scores[at - 1];
      indices[at] = indices[at - 1];
    }
    scores[at] = score;
    indices[at] = i;
  }
}

int main(int argc, char **argv) {
  const bench_json json = {.roundtrip = request, .batch = batch, .parse = parse};
  const bench_impl impl = {
      .version = "plain C, no pool",
      .fib = fib,
      .tree = tree,
      .submit = submit,
      .wake = bench_woken,
      .spawn_await = spawn_await,
      .yield = yield,
      .sort = sort,
      .json = &json,
      .topk = topk,
  };
  return bench_main(argc, argv, &impl);
}
