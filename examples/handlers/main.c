/* main.c - makes a pool of config/config, asks each handler once and prints every result. */
#include <stdio.h>

#include <threadpool.h>

/* Prints all results of a request; false: it was not accepted, or it failed. */
static bool show(threadpool_t *pool, const char *json) {
  uint64_t id = threadpool_submit(pool, json);
  if (id == 0) {
    fprintf(stderr, "not accepted: %s\n", threadpool_last_error());
    return false;
  }
  printf("%s\n", json);
  for (;;) {
    result_t *r = threadpool_wait_result(pool, id, 5000);
    if (!r) {
      fprintf(stderr, "no result within 5 s\n");
      return false;
    }
    bool final = r->flags & RESULT_FINAL, good = r->status >= 0;
    if (good)
      printf("  %s \"%.*s\"\n", final ? "final" : "partial", (int)r->data_size,
             r->data ? (char *)r->data : "");
    else
      printf("  %s: %s\n", threadpool_error_name(r->status), r->error_msg);
    threadpool_result_free(r);
    if (final) return good;
  }
}

int main(void) {
  threadpool_t *pool = threadpool_create("config/config");
  if (!pool) {
    fprintf(stderr, "%s\n", threadpool_last_error());
    return 1;
  }
  bool good = show(pool, "{\"opcode\": 100, \"args\": {\"text\": \"to be or not to be\"}}");
  good &= show(pool, "{\"op\": \"later\", \"args\": {\"text\": \"done\", \"ms\": 20}}");
  good &= show(pool, "{\"op\": \"split\", \"args\": {\"text\": \"one two three\"}}");
  show(pool, "{\"op\": \"count_words\", \"args\": {\"text\": 1}}"); /* fails, and says why */
  return threadpool_shutdown(pool) == 0 && good ? 0 : 1;
}
