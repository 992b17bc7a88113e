/* config_keys.c - the table of keys, and what to say of a key that is not in it. */
#include "pool/config_keys.h"

#include <string.h>

#include "threadpool.h"

/* --- the keys ---------------------------------------------------------------------------------- */

#define MEMBER(m) .member = #m, .offset = offsetof(threadpool_options, m)
#define NUMBER(key, type, m, low, high, text, about)                                               \
  {                                                                                                \
    .name = #key, .kind = type, MEMBER(m), .least = low, .most = high, .preset = text,             \
    .help = about                                                                                  \
  }
#define WORD(key, m, off, on, about)                                                               \
  {                                                                                                \
    .name = #key, .kind = TP_KEY_WORD, MEMBER(m), .no = off, .yes = on, .preset = off,             \
    .help = about                                                                                  \
  }

enum { HOUR_MS = 3600 * 1000 };

const tp_config_key tp_config_keys[TP_CONFIG_KEYS] = {
    NUMBER(thread_count, TP_KEY_INT, workers, 0, THREADPOOL_MAX_WORKERS, "0",
           "worker threads; 0 = one for each CPU this process may use"),
    NUMBER(blocking_threads, TP_KEY_INT, blocking, 0, THREADPOOL_MAX_BLOCKING, "512",
           "threads beyond the workers, for handlers that block; 0 = 512"),
    NUMBER(drain_ms, TP_KEY_INT, drain_ms, -1, 24 * HOUR_MS, "5000",
           "how long shutdown lets tasks finish; 0 = 5000, -1 = not at all"),
    NUMBER(park_timeout_ms, TP_KEY_INT, park_timeout_ms, 0, HOUR_MS, "0",
           "how often an idle worker looks around; 0 = only when it is woken"),
    WORD(idle_strategy, idle_yield, "pause", "yield",
         "what a worker does between looks for work, before it sleeps"),
    WORD(pin, pin, "no", "yes", "one CPU for each worker"),
    NUMBER(max_pending, TP_KEY_UINT32, max_pending, 0, 1 << 24, "65536",
           "requests whose result is not yet fetched; 0 = 65536"),
    NUMBER(max_request_bytes, TP_KEY_UINT32, max_request_bytes, 0, 1 << 30, "67108864",
           "length of one request's text; 0 = 64 MiB"),
    NUMBER(max_depth, TP_KEY_UINT32, max_depth, 0, 65536, "512", "nesting of one request; 0 = 512"),
    NUMBER(window, TP_KEY_UINT32, window, 0, 1 << 20, "64",
           "partial results of one request that may wait to be fetched; 0 = 64"),
    NUMBER(initial_task_capacity, TP_KEY_UINT32, initial_capacity, 0, 1 << 20, "256",
           "requests for which there is memory from the start; 0 = 256"),
    /* Seed 5's bound of results that wait. Ours counts what was submitted and not fetched: the same bound, but
     * from the other end. So it is max_pending by its old name, and max_pending goes first. */
    {.name = "result_queue_capacity",
     .kind = TP_KEY_UINT32,
     .weak = true,
     MEMBER(max_pending),
     .most = 1 << 24,
     .preset = "65536",
     .help = "older name of max_pending, which goes first"},
    {.name = "handlers",
     .member = "",
     .kind = TP_KEY_PATH,
     .preset = "",
     .help = "a shared object with handler functions, relative to this file; may be given again"},
};

/* --- keys that are not there ------------------------------------------------------------------- */

enum { KEY_LONGEST = 32 };

static char folded(char c) {
  return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c == '-' ? '_' : c);
}

/* How many characters to insert, remove or replace; case does not count, nor - for _. */
static unsigned distance(const char *key, size_t length, const char *name) {
  unsigned row[KEY_LONGEST + 1];
  for (unsigned i = 0; i <= length; i++) row[i] = i;
  for (unsigned j = 1; name[j - 1]; j++) {
    unsigned corner = row[0];
    row[0] = j;
    for (unsigned i = 1; i <= length; i++) {
      unsigned best = corner + (folded(key[i - 1]) != name[j - 1]);
      if (row[i] + 1 < best) best = row[i] + 1;
      if (row[i - 1] + 1 < best) best = row[i - 1] + 1;
      corner = row[i];
      row[i] = best;
    }
  }
  return row[length];
}

const char *tp_config_key_meant(const char *key, size_t length) {
  const char *name = NULL;
  unsigned best = length > 4 ? 3 : 2;
  if (length > KEY_LONGEST) return NULL;
  for (size_t i = 0; i < TP_CONFIG_KEYS; i++) {
    if (strlen(tp_config_keys[i].member) == length &&
        memcmp(tp_config_keys[i].member, key, length) == 0)
      return tp_config_keys[i].name;
    unsigned d = distance(key, length, tp_config_keys[i].name);
    if (d < best) {
      best = d;
      name = tp_config_keys[i].name;
    }
  }
  return name;
}
