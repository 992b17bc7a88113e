-- Generated from csrc/threadpool*.h by config/build/generate-cdef.sh: do not edit.
-- luacheck: no max line length

return {
  abi = 5,
  text = [[
enum threadpool_error {
  ERR_SUCCESS = 0,
  ERR_UNKNOWN_OPCODE = -1,
  ERR_INVALID_JSON = -2,
  ERR_SYMBOL_NOT_FOUND = -3,
  ERR_MALLOC_FAILED = -4,
  ERR_HANDLER_CRASH = -5,
  ERR_TIMEOUT = -6,
  ERR_QUEUE_FULL = -7,
  ERR_CANCELLED = -8,
  ERR_SHUTDOWN = -9,
  ERR_INVALID_ARGUMENT = -10,
  ERR_WRONG_THREAD = -11,
  ERR_IO = -12,
  ERR_BUSY = -13,
  ERR_FORKED = -14,
  ERR_LUA = -15,
  ERR_CLOSED = -16,
};
typedef struct threadpool threadpool_t;
typedef struct threadpool_worker threadpool_worker;
typedef void (*threadpool_fn)(threadpool_worker *w, void *arg);
enum { THREADPOOL_MAX_WORKERS = 1024, THREADPOOL_MAX_BLOCKING = 65536 };
typedef struct threadpool_options {
  int workers;
  int blocking;
  int drain_ms;
  int park_timeout_ms;
  bool idle_yield;
  bool pin;
  uint32_t max_pending;
  uint32_t max_request_bytes;
  uint32_t max_depth;
  uint32_t window;
  uint32_t initial_capacity;
} threadpool_options;
threadpool_t *threadpool_create(const char *config_path);
threadpool_t *threadpool_create_with(const threadpool_options *options, int *error);
int threadpool_shutdown(threadpool_t *pool);
int threadpool_shutdown_within(threadpool_t *pool, int drain_ms);
int threadpool_workers(threadpool_t *pool);
const char *threadpool_error_name(int code);
const char *threadpool_error_text(int code);
const char *threadpool_last_error(void);
int threadpool_abi(void);
enum { RESULT_FINAL = 1, RESULT_PARTIAL = 2, RESULT_LUA = 4 };
typedef struct result {
  uint64_t task_id;
  int32_t status;
  void *data;
  uint32_t data_size;
  char error_msg[256];
  uint32_t flags;
  uint64_t sequence;
  uint64_t outer_id;
} result_t;
typedef void (*result_callback_fn)(result_t *result, void *user_data);
uint64_t threadpool_submit(threadpool_t *pool, const char *json);
uint64_t threadpool_submit_with_callback(threadpool_t *pool, const char *json, result_callback_fn callback, void *user_data);
enum { THREADPOOL_NORMAL, THREADPOOL_HIGH, THREADPOOL_LOW };
enum { THREADPOOL_BY_ID, THREADPOOL_BY_CALLBACK, THREADPOOL_BY_QUEUE };
typedef struct threadpool_queue threadpool_queue;
typedef struct threadpool_request {
  const char *json;
  size_t length;
  uint32_t opcode;
  const void *payload;
  size_t size;
  int priority;
  uint32_t timeout_ms;
  int deliver;
  result_callback_fn callback;
  void *user_data;
  threadpool_queue *queue;
  bool credited;
} threadpool_request;
size_t threadpool_submit_batch(threadpool_t *pool, const threadpool_request *requests, size_t n, uint64_t *ids);
result_t *threadpool_poll_result(threadpool_t *pool, uint64_t task_id);
result_t *threadpool_wait_result(threadpool_t *pool, uint64_t task_id, uint32_t timeout_ms);
void threadpool_result_free(result_t *result);
threadpool_queue *threadpool_queue_new(void);
void threadpool_queue_free(threadpool_queue *queue);
size_t threadpool_queue_take(threadpool_queue *queue, result_t **out, size_t n);
int threadpool_queue_fd(threadpool_queue *queue);
int threadpool_queue_wait(threadpool_queue *queue, uint32_t timeout_ms);
int threadpool_credit(threadpool_t *pool, uint64_t task_id, uint32_t n);
uint32_t threadpool_pending(threadpool_t *pool);
size_t threadpool_completions(threadpool_t *pool, result_t **out, size_t n);
int threadpool_event_fd(threadpool_t *pool);
int threadpool_cancel(threadpool_t *pool, uint64_t task_id);
int threadpool_detach(threadpool_t *pool, uint64_t task_id);
enum { THREADPOOL_QUEUED = 1, THREADPOOL_RUNNING, THREADPOOL_WAITING, THREADPOOL_DONE };
int threadpool_status(threadpool_t *pool, uint64_t task_id);
typedef struct threadpool_task task_t;
enum { THREADPOOL_PENDING, THREADPOOL_READY, THREADPOOL_AGAIN };
typedef void (*handler_fn)(task_t *task);
typedef int (*threadpool_poll_fn)(task_t *task, void **state);
typedef struct threadpool_handler {
  const char *name;
  int64_t opcode;
  handler_fn run;
  threadpool_poll_fn poll;
  void (*drop)(void *state);
  bool blocking;
  void *user_data;
} threadpool_handler;
int threadpool_register(threadpool_t *pool, const threadpool_handler *handler);
bool threadpool_arg_text(task_t *task, const char *name, const char **text, size_t *length);
bool threadpool_arg_int(task_t *task, const char *name, int64_t *value);
bool threadpool_arg_uint(task_t *task, const char *name, uint64_t *value);
bool threadpool_arg_double(task_t *task, const char *name, double *value);
bool threadpool_arg_bool(task_t *task, const char *name, bool *value);
bool threadpool_arg_is(task_t *task, const char *name);
const char *threadpool_arg_json(task_t *task, const char *name, size_t *length);
const void *threadpool_payload(task_t *task, size_t *size);
void *threadpool_arg_symbol(task_t *task, const char *name, uint32_t access, size_t *size);
void threadpool_return(task_t *task, void *data, size_t size, void (*release)(void *data, void *arg), void *arg);
int threadpool_return_copy(task_t *task, const void *data, size_t size);
void threadpool_fail(task_t *task, int code, const char *format, ...);
int threadpool_emit(task_t *task, const void *data, size_t size);
bool threadpool_cancelled(task_t *task);
int threadpool_shield(task_t *task);
int threadpool_unshield(task_t *task);
uint64_t threadpool_task_id(const task_t *task);
threadpool_t *threadpool_pool(const task_t *task);
void *threadpool_user_data(const task_t *task);
typedef struct threadpool_waker threadpool_waker;
threadpool_waker *threadpool_waker_new(task_t *task);
void threadpool_wake(threadpool_waker *waker);
void threadpool_waker_free(threadpool_waker *waker);
int threadpool_sleep(task_t *task, uint32_t ms);
typedef struct symbol_table symbol_table_t;
enum { SYMBOL_READ = 1, SYMBOL_WRITE = 2, SYMBOL_READ_WRITE = 3 };
symbol_table_t *threadpool_symbols(threadpool_t *pool);
int symbol_register(symbol_table_t *table, const char *name, void *ptr, uint32_t size);
int symbol_register_flags(symbol_table_t *table, const char *name, void *ptr, uint32_t size, uint32_t flags);
void *symbol_resolve(symbol_table_t *table, const char *name, uint32_t *out_size);
int symbol_unregister(symbol_table_t *table, const char *name);
typedef struct threadpool_counters {
  uint64_t executed;
  uint64_t stolen;
  uint64_t parked;
  uint64_t waited;
  uint64_t woken;
  uint64_t overflowed;
  uint64_t batches;
  uint64_t lifo_capped;
  uint64_t lifo_stolen;
  uint64_t half_steals;
  uint64_t jobs_stolen;
  uint64_t from_high;
  uint64_t from_normal;
  uint64_t from_low;
  uint64_t substitutes;
  uint64_t wakes_by_post;
  uint64_t wakes_by_finder;
  uint64_t wakes_of_waiter;
  uint64_t wakes_deferred;
  uint64_t wakes_by_alarm;
  uint64_t exposed;
  uint64_t decoded;
  uint64_t splits;
  uint64_t merges;
} threadpool_counters;
int threadpool_stats(threadpool_t *pool, int index, threadpool_counters *out);
int threadpool_call(threadpool_t *pool, threadpool_fn fn, void *arg);
threadpool_worker *threadpool_current(void);
int threadpool_join(threadpool_worker *w, threadpool_fn a, void *a_arg, threadpool_fn b, void *b_arg);
typedef struct threadpool_scope {
  threadpool_worker *home;
  int64_t pending;
  uint32_t latch;
  uint32_t guard;
} threadpool_scope;
int threadpool_scope_begin(threadpool_worker *w, threadpool_scope *scope);
int threadpool_spawn(threadpool_worker *w, threadpool_scope *scope, threadpool_fn fn, void *arg);
int threadpool_scope_end(threadpool_worker *w, threadpool_scope *scope);
int threadpool_broadcast(threadpool_t *pool, threadpool_fn fn, void *arg);
typedef void (*threadpool_range_fn)(threadpool_worker *w, int64_t begin, int64_t end, void *arg);
int threadpool_for(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain, threadpool_range_fn body, void *arg);
typedef struct threadpool_reducer {
  size_t size;
  void (*fold)(threadpool_worker *w, int64_t begin, int64_t end, void *acc, void *arg);
  void (*merge)(void *acc, const void *right, void *arg);
} threadpool_reducer;
int threadpool_reduce(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain, const threadpool_reducer *reducer, void *result, void *arg);
typedef void (*threadpool_map_fn)(threadpool_worker *w, const void *in, void *out, void *arg);
int threadpool_map(threadpool_worker *w, const void *in, size_t in_size, void *out, size_t out_size, int64_t n, int64_t grain, threadpool_map_fn fn, void *arg);
typedef bool (*threadpool_match_fn)(threadpool_worker *w, int64_t i, void *arg);
int threadpool_find(threadpool_worker *w, int64_t begin, int64_t end, int64_t grain, threadpool_match_fn match, void *arg, int64_t *found);
typedef int (*threadpool_compare_fn)(const void *a, const void *b, void *arg);
int threadpool_sort(threadpool_worker *w, void *base, size_t n, size_t size, threadpool_compare_fn compare, void *arg);
int threadpool_sort_i64(threadpool_worker *w, int64_t *base, size_t n);
int threadpool_sort_u64(threadpool_worker *w, uint64_t *base, size_t n);
int threadpool_sort_f64(threadpool_worker *w, double *base, size_t n);
typedef struct threadpool_matrix {
  float *data;
  int64_t rows;
  int64_t dim;
  int64_t stride;
} threadpool_matrix;
int threadpool_vector_dot(threadpool_t *pool, const float *a, const float *b, int64_t n, double *result);
int threadpool_vector_norm(threadpool_t *pool, const float *a, int64_t n, double *result);
int threadpool_vector_cosine(threadpool_t *pool, const float *a, const float *b, int64_t n, double *result);
int threadpool_vector_dots(threadpool_t *pool, const threadpool_matrix *m, const float *query, float *out);
int threadpool_vector_norms(threadpool_t *pool, const threadpool_matrix *m, float *out);
int threadpool_vector_cosines(threadpool_t *pool, const threadpool_matrix *m, const float *query, float *out);
int threadpool_vector_normalise(threadpool_t *pool, const threadpool_matrix *m);
enum { THREADPOOL_DOT, THREADPOOL_COSINE, THREADPOOL_EUCLIDEAN };
int threadpool_vector_top(threadpool_t *pool, const threadpool_matrix *m, const float *query, int64_t k, int metric, int64_t *indices, float *scores, int64_t *found);
int threadpool_vector_argmax(threadpool_t *pool, const float *a, int64_t n, int64_t *index);
int threadpool_vector_argmin(threadpool_t *pool, const float *a, int64_t n, int64_t *index);
]],
}
