/* handlers.c - three operations of one's own: a plain handler, a poll handler, one that streams.
 *
 * Built as a shared object that config/config names. The functions are found by their names there; what a
 * handler may call is marked [H] in threadpool.h.
 */
#include <stdio.h>
#include <string.h>

#include <threadpool.h>

/* The plug-in shows these three and nothing else (-fvisibility=hidden). */
THREADPOOL_API void handler_count_words(task_t *task);
THREADPOOL_API int handler_later(task_t *task, void **state);
THREADPOOL_API void handler_split(task_t *task);

/* Plain: runs to its end. {"text": "..."}; the result is a number. */
void handler_count_words(task_t *task) {
  const char *text;
  size_t length, words = 0;
  if (!threadpool_arg_text(task, "text", &text, &length)) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"text\": expected a string");
    return;
  }
  for (size_t i = 0; i < length; i++) words += text[i] != ' ' && (i == 0 || text[i - 1] == ' ');
  char number[24];
  int n = snprintf(number, sizeof number, "%zu", words);
  int error = threadpool_return_copy(task, number, (size_t)n);
  if (error) threadpool_fail(task, error, "%s", threadpool_error_text(error));
}

/* Poll: is called, says PENDING, and is called again when it was woken; no thread waits meanwhile.
 * {"ms": 20, "text": "..."}; the result is the text, that much later. `*state` is its own, NULL at first. */
int handler_later(task_t *task, void **state) {
  static char asleep;
  const char *text;
  size_t length;
  uint64_t ms;
  if (!threadpool_arg_text(task, "text", &text, &length) || !threadpool_arg_uint(task, "ms", &ms) ||
      ms > UINT32_MAX) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT,
                    "expected \"text\", a string, and \"ms\", a whole number below 2^32");
    return THREADPOOL_READY;
  }
  if (!*state) {
    *state = &asleep;
    return threadpool_sleep(task, (uint32_t)ms); /* nothing else wakes it */
  }
  int error = threadpool_return_copy(task, text, length);
  if (error) threadpool_fail(task, error, "%s", threadpool_error_text(error));
  return THREADPOOL_READY;
}

/* Streaming: one partial result for each word, then the final one. {"text": "..."}
 * threadpool_emit waits while the window is full, and says when nobody wants more. */
void handler_split(task_t *task) {
  const char *at;
  size_t length;
  if (!threadpool_arg_text(task, "text", &at, &length)) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"text\": expected a string");
    return;
  }
  for (const char *end = at + length; at < end;) {
    const char *space = memchr(at, ' ', (size_t)(end - at));
    size_t word = (size_t)((space ? space : end) - at);
    if (word > 0) {
      int error = threadpool_emit(task, at, word);
      if (error) {
        threadpool_fail(task, error, "%s", threadpool_error_text(error));
        return;
      }
    }
    at += word + 1;
  }
}
