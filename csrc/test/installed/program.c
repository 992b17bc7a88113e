/* program.c - a program of somebody else, built against what is installed: submits, waits, prints.
 *
 * Run by config/build/check-install.sh. It also holds the offsets of result_t that docs/BYTECODE.md promises to
 * clients in other languages.
 */
#include <stddef.h>
#include <stdio.h>

#include "threadpool.h"

#define AT(member, offset) _Static_assert(offsetof(result_t, member) == (offset), #member)
AT(task_id, 0);
AT(status, 8);
AT(data, 16);
AT(data_size, 24);
AT(error_msg, 28);
AT(flags, 284);
AT(sequence, 288);
AT(outer_id, 296);
_Static_assert(sizeof(result_t) == 304, "result_t");

int main(int argc, char **argv) {
  threadpool_t *pool = threadpool_create(argc > 1 ? argv[1] : NULL);
  if (!pool) {
    fprintf(stderr, "%s\n", threadpool_last_error());
    return 1;
  }
  uint64_t task_id = threadpool_submit(pool, "{\"opcode\": 8, \"args\": {\"text\": \"hello\"}}");

  result_t *result = threadpool_wait_result(pool, task_id, 5000);
  if (!result) return 1;
  printf("%d %.*s\n", result->status, (int)result->data_size, (char *)result->data);
  threadpool_result_free(result);
  return threadpool_shutdown(pool);
}
