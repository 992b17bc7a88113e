/* test_plugin.c - config files on disk, and the shared objects they name, which are built here. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "pool/config.h"
#include "pool/plugin.h"
#include "test/help.h"

static tp_config config;

/* --- files ------------------------------------------------------------------------------------- */

static char folder[64];

static const char *in_folder(const char *name) {
  static char path[384];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}
static void write_file(const char *name, const char *text, size_t length) {
  FILE *f = fopen(in_folder(name), "w");
  assert_non_null(f);
  assert_int_equal(fwrite(text, 1, length, f), length);
  assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state) {
  (void)state;
  snprintf(folder, sizeof folder, "/tmp/test_config.XXXXXX");
  return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state) {
  (void)state;
  DIR *d = opendir(folder);
  if (!d) return -1;
  for (struct dirent *e; (e = readdir(d));)
    if (e->d_name[0] != '.') unlink(in_folder(e->d_name));
  closedir(d);
  return rmdir(folder);
}

static void files_that_cannot_be_read_are_told(void **state) {
  (void)state;
  char message[300];
  assert_int_equal(tp_config_read(&config, "no/such/file"), ERR_IO);
  assert_string_equal(tp_said(), "no/such/file: cannot be opened: No such file or directory");
  assert_int_equal(tp_config_read(&config, folder), ERR_IO);
  snprintf(message, sizeof message, "%s: cannot be read: Is a directory", folder);
  assert_string_equal(tp_said(), message);
  assert_int_equal(tp_config_read(&config, NULL), ERR_INVALID_ARGUMENT);
  assert_string_equal(tp_said(), "config file: NULL, expected a path");
  assert_null(config.text);

  write_file("c", "pin=no\nx", 8);
  assert_int_equal(tp_config_read(&config, in_folder("c")), ERR_INVALID_ARGUMENT);
  snprintf(message, sizeof message, "%s/c:2: x: expected key=value or opcode=handler_name", folder);
  assert_string_equal(tp_said(), message);

  char *text = malloc(TP_CONFIG_MAX_BYTES + 1);
  assert_non_null(text);
  memset(text, '\n', TP_CONFIG_MAX_BYTES + 1);
  write_file("c", text, TP_CONFIG_MAX_BYTES + 1);
  assert_int_equal(tp_config_read(&config, in_folder("c")), ERR_INVALID_ARGUMENT);
  snprintf(message, sizeof message, "%s/c: more than 1 MiB: expected at most 1048576 bytes",
           folder);
  assert_string_equal(tp_said(), message);
  free(text);
  write_file("c", "", 0);
  assert_int_equal(tp_config_read(&config, in_folder("c")), 0);
  tp_config_free(&config);
}

/* --- plug-ins ---------------------------------------------------------------------------------- */

/* Makes folder/NAME.so of C text. False: there is no compiler. */
static bool build(const char *name, const char *source) {
  char file[32], command[600];
  const char *cc = getenv("CC");
  snprintf(file, sizeof file, "%s.c", name);
  write_file(file, source, strlen(source));
  snprintf(command, sizeof command, "%s -shared -fPIC -o '%s/%s.so' '%s/%s.c' 2>'%s/log'",
           cc && *cc ? cc : "cc", folder, name, folder, name, folder);
  int status = system(command);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    print_message("plug-ins were not tested: no compiler \"%s\"\n", cc && *cc ? cc : "cc");
    return false;
  }
  if (status) print_error("failed: %s\n", command);
  assert_int_equal(status, 0);
  return true;
}

static int call(const tp_plugins *p, const char *name) {
  int (*function)(void);
  *(void **)&function = tp_plugins_find(p, name);
  return function ? function() : -1;
}

/* This program is linked with -rdynamic. */
int tp_test_of_the_program(void);
int tp_test_of_the_program(void) {
  return 5;
}
extern int tp_test_data;
int tp_test_data = 1;

static void handlers_are_found_in_plugins_in_order_then_in_the_program(void **state) {
  (void)state;
  if (!build("first", "int tp_test_data;\nint tp_test_both(void) { return 1; }\nint "
                      "tp_test_one(void) { return 11; }\n") ||
      !build("second",
             "int tp_test_both(void) { return 2; }\nint tp_test_two(void) { return 22; }\n"))
    skip();
  const char *text = "\nhandlers=first.so\nhandlers=second.so # relative\n";
  write_file("c", text, strlen(text));
  assert_int_equal(tp_config_read(&config, in_folder("c")), 0);

  tp_plugins p = {0};
  assert_ptr_equal(tp_program_find("tp_test_of_the_program"), (void *)tp_test_of_the_program);
  assert_null(tp_program_find("tp_test_data")); /* no function */
  assert_null(tp_program_find("exit"));         /* of the C library */
  assert_null(tp_program_find("stdout"));
  assert_null(tp_program_find("tp_test_both"));
  assert_null(tp_plugins_find(&p, "tp_test_both"));
  for (size_t i = 0; i < config.plugin_count; i++)
    assert_int_equal(tp_plugins_open(&p, config.plugins[i].path, "c", config.plugins[i].line), 0);
  assert_int_equal(p.count, 2);
  assert_int_equal(call(&p, "tp_test_both"), 1);
  assert_int_equal(call(&p, "tp_test_one"), 11);
  assert_int_equal(call(&p, "tp_test_two"), 22);
  assert_null(tp_plugins_find(&p, "tp_test_none"));
  assert_null(tp_plugins_find(&p, "tp_test_data"));
  assert_null(tp_plugins_find(&p, "getpid")); /* of a library that they need: not theirs */
  for (int i = 0; i < 20; i++) /* the array grows; the same object again is allowed */
    assert_int_equal(tp_plugins_open(&p, config.plugins[1].path, "c", 1), 0);
  assert_int_equal(call(&p, "tp_test_both"), 1);
  tp_plugins_close(&p);
  assert_int_equal(p.count, 0);
  assert_null(tp_plugins_find(&p, "tp_test_one"));
  tp_plugins_close(&p);
  tp_config_free(&config);
}

static void plugins_that_do_not_load_are_told(void **state) {
  (void)state;
  char message[600];
  tp_plugins p = {0};
  assert_int_equal(tp_plugins_open(&p, "./no/such.so", "config/config", 12), ERR_IO);
  const char *begin =
      "config/config:12: handlers=./no/such.so: expected a shared object that loads: ";
  assert_memory_equal(tp_said(), begin, strlen(begin));
  assert_non_null(strstr(tp_said(), "No such file"));

  write_file("text.so", "not a library", 13);
  assert_int_equal(tp_plugins_open(&p, in_folder("text.so"), "c", 3), ERR_IO);
  snprintf(message, sizeof message, "c:3: handlers=%s/text.so: expected a shared object", folder);
  assert_memory_equal(tp_said(), message, strlen(message));

  /* P3: what it lacks is missed now. */
  if (!build("lacks",
             "int tp_test_lacks(void);\nint tp_test_x(void) { return tp_test_lacks(); }\n")) {
    tp_plugins_close(&p);
    skip();
  }
  assert_int_equal(tp_plugins_open(&p, in_folder("lacks.so"), "c", 4), ERR_IO);
  assert_non_null(strstr(tp_said(), "tp_test_lacks"));
  assert_int_equal(p.count, 0);
  tp_plugins_close(&p);
}

static void no_memory_for_a_plugin_is_told(void **state) {
  (void)state;
  tp_plugins p = {0};
  tp_fail_at(1);
  assert_int_equal(tp_plugins_open(&p, "./x.so", "c", 7), ERR_MALLOC_FAILED);
  assert_string_equal(tp_said(), "c:7: handlers=./x.so: out of memory");
  tp_plugins_close(&p);
}

/* --- handlers of a plug-in in a pool */

/* It cannot link with the library, which is part of this program. */
static const char own_source[] =
    "void (*tp_test_return)(void *, void *, unsigned long, void (*)(void *, void *), void *);\n"
    "int tp_test_dropped, tp_test_released;\n"
    "static void release(void *data, void *arg) { (void)data; ++*(int *)arg; }\n"
    "void handler_own(void *task) {\n"
    "  tp_test_return(task, \"of the plug-in\", 15, release, &tp_test_released);\n"
    "}\n"
    "int handler_wait(void *task, void **state) { (void)task; *state = &tp_test_dropped; return 0; "
    "}\n"
    "void handler_wait_drop(void *state) { ++*(int *)state; }\n";

static threadpool_t *pool_with_plugin(void) {
  const char *text = "thread_count=1\nhandlers=own.so\n100=handler_own\n101=poll:handler_wait\n";
  write_file("c", text, strlen(text));
  threadpool_t *pool = threadpool_create(in_folder("c"));
  if (!pool) fail_msg("%s", threadpool_last_error());
  return pool;
}
/* A variable of the plug-in, which is loaded. */
static void *variable(const char *name) {
  void *object = dlopen(in_folder("own.so"), RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(object);
  void *v = dlsym(object, name);
  assert_non_null(v);
  dlclose(object);
  return v;
}

static void a_result_outlives_its_plugins_pool(void **state) {
  (void)state;
  if (!build("own", own_source)) skip();
  threadpool_t *pool = pool_with_plugin();
  void (*give)(task_t *, void *, size_t, void (*)(void *, void *), void *) = threadpool_return;
  memcpy(variable("tp_test_return"), &give, sizeof give);
  result_t *r = threadpool_wait_result(pool, threadpool_submit(pool, "{\"opcode\": 100}"), 60000);
  assert_non_null(r);
  assert_int_equal(r->status, 0);
  assert_int_equal(threadpool_shutdown(pool), 0);
  assert_string_equal(r->data, "of the plug-in");
  threadpool_result_free(r);
  assert_int_equal(*(int *)variable("tp_test_released"), 1);
}

static void a_plugins_state_is_dropped(void **state) {
  (void)state;
  if (!build("own", own_source)) skip();
  threadpool_t *pool = pool_with_plugin();
  int *dropped = variable("tp_test_dropped"), before = *dropped;
  uint64_t id = threadpool_submit(pool, "{\"opcode\": 101}");
  test_wait(threadpool_status(pool, id) == THREADPOOL_WAITING);
  assert_int_equal(threadpool_cancel(pool, id), 1);
  threadpool_result_free(threadpool_wait_result(pool, id, 60000));
  assert_int_equal(*dropped, before + 1);
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* --- a pool of such a config -------------------------------------------------------------------- */

static void is_refused(const char *text, int line, const char *why) {
  char message[600];
  write_file("c", text, strlen(text));
  threadpool_t *pool = threadpool_create(in_folder("c"));
  if (pool) threadpool_shutdown(pool);
  snprintf(message, sizeof message, "%s/c:%d: %s", folder, line, why);
  assert_string_equal(threadpool_last_error(), message);
  assert_null(pool);
}
static void a_handler_that_cannot_be_is_told_with_its_line(void **state) {
  (void)state;
  is_refused("pin=no\n3=handler_none\n", 2,
             "3=handler_none: expected a function of a plug-in (handlers=...) or of the program, "
             "or one of "
             "handler_updater, handler_http_get, handler_http_post, handler_write_memory, "
             "handler_read_memory, "
             "handler_file_read, handler_file_write, handler_sleep, handler_echo");
  is_refused("3=poll:handler_write_memory\n", 1,
             "3=handler_write_memory: it is built in and not polled: expected the name alone");
  is_refused("\n3=blocking:handler_echo\n", 2,
             "3=handler_echo: it is built in and does not block: expected the name alone");
  if (!build("names", "void handler_a23456789012345678901234567890123456789012345678901234567890"
                      "1234(void *t) { (void)t; }\n"))
    skip();
  is_refused(
      "handlers=names.so\n"
      "3=handler_a234567890123456789012345678901234567890123456789012345678901234\n",
      2,
      "3=handler_a234567890123456789012345678901234567890123456789012345678901234: expected a "
      "name of 1 to 63 characters behind handler_");
}

static void request_gives(threadpool_t *pool, const char *json, int status, const char *text) {
  result_t *r = threadpool_wait_result(pool, threadpool_submit(pool, json), UINT32_MAX);
  assert_non_null(r);
  if (r->status != status) fail_msg("%s: %d %s", json, r->status, r->error_msg);
  if (status)
    assert_string_equal(r->error_msg, text);
  else
    assert_string_equal(r->data, text);
  threadpool_result_free(r);
}
static void a_handler_may_have_two_opcodes(void **state) {
  (void)state;
  const char *text =
      "3=handler_echo\n4=handler_echo\n5=blocking:handler_file_read\n6=poll:handler_sleep\n";
  write_file("c", text, strlen(text));
  threadpool_t *pool = threadpool_create(in_folder("c"));
  if (!pool) fail_msg("%s", threadpool_last_error());
  request_gives(pool, "{\"opcode\": 3, \"args\": {}}", 0, "{}");
  request_gives(pool, "{\"opcode\": 3, \"op\": \"echo\", \"args\": {}}", 0, "{}");
  request_gives(pool, "{\"opcode\": 4, \"op\": \"echo\", \"args\": {}}", 0, "{}");
  request_gives(pool, "{\"opcode\": 4, \"op\": \"sleep\", \"args\": {}}", ERR_INVALID_JSON,
                "opcode 4 is echo, but \"op\" says sleep: give one of them");
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(files_that_cannot_be_read_are_told),
      cmocka_unit_test(handlers_are_found_in_plugins_in_order_then_in_the_program),
      cmocka_unit_test(plugins_that_do_not_load_are_told),
      cmocka_unit_test(no_memory_for_a_plugin_is_told),
      cmocka_unit_test(a_result_outlives_its_plugins_pool),
      cmocka_unit_test(a_plugins_state_is_dropped),
      cmocka_unit_test(a_handler_that_cannot_be_is_told_with_its_line),
      cmocka_unit_test(a_handler_may_have_two_opcodes),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
