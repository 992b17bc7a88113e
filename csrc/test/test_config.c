/* test_config.c - the config file: every key, every mistake with its message, memory, and the file that
 * ships. Files that cannot be read, and plug-ins: test_plugin.c. */
#include <stdio.h>

#include "base/alloc.h"
#include "base/error.h"
#include "pool/config.h"
#include "pool/config_keys.h"
#include "test/help.h"

static tp_config config;

/* Parsed as file "c"; what went wrong is printed. */
static void takes_bytes(const char *text, size_t length) {
  int code = tp_config_parse(&config, text, length, "c");
  if (code) print_error("%s\n", tp_said());
  assert_int_equal(code, 0);
}
static void takes(const char *text) {
  takes_bytes(text, strlen(text));
}
static void is_empty(void) {
  static const tp_config zero;
  assert_memory_equal(&config, &zero, sizeof zero);
}
static void refuses_bytes(const char *text, size_t length, const char *message) {
  memset(&config, 0x5A, sizeof config);
  assert_int_equal(tp_config_parse(&config, text, length, "c"), ERR_INVALID_ARGUMENT);
  assert_string_equal(tp_said(), message);
  is_empty();
}
static void refuses(const char *text, const char *message) {
  refuses_bytes(text, strlen(text), message);
}
static void done(void) {
  tp_config_free(&config);
  is_empty();
}

/* --- what is accepted -------------------------------------------------------------------------- */

static void every_key_sets_its_option(void **state) {
  (void)state;
  takes("thread_count=3\nblocking_threads=7\ndrain_ms=-1\npark_timeout_ms=11\nidle_strategy=yield\n"
        "pin=yes\nmax_pending=13\nmax_request_bytes=17\nmax_depth=19\nwindow=23\n"
        "initial_task_capacity=29\nresult_queue_capacity=31\nhandlers=/x.so\n");
  threadpool_options o = config.options;
  assert_int_equal(o.workers, 3);
  assert_int_equal(o.blocking, 7);
  assert_int_equal(o.drain_ms, -1);
  assert_int_equal(o.park_timeout_ms, 11);
  assert_true(o.idle_yield);
  assert_true(o.pin);
  assert_int_equal(o.max_pending, 13);
  assert_int_equal(o.max_request_bytes, 17);
  assert_int_equal(o.max_depth, 19);
  assert_int_equal(o.window, 23);
  assert_int_equal(o.initial_capacity, 29);
  assert_int_equal(config.plugin_count, 1);
  done();
  takes("pin=no\nidle_strategy=pause");
  assert_false(config.options.pin);
  assert_false(config.options.idle_yield);
  done();
}

/* Both ends of every range of the table are accepted, what lies beyond is refused with the range. */
static void every_number_has_its_range(void **state) {
  (void)state;
  for (size_t i = 0; i < TP_CONFIG_KEYS; i++) {
    const tp_config_key *k = &tp_config_keys[i];
    assert_non_null(k->name);
    assert_true(k->help && *k->help);
    if (k->kind != TP_KEY_INT && k->kind != TP_KEY_UINT32) continue;
    for (int end = 0; end < 4; end++) {
      long long n[] = {k->least, k->most, k->least - 1, k->most + 1};
      char text[100], message[200];
      snprintf(text, sizeof text, "%s=%lld", k->name, n[end]);
      if (end < 2) {
        takes(text);
        const char *member = (const char *)&config.options + k->offset;
        int32_t value;
        memcpy(&value, member, sizeof value);
        assert_int_equal(value, n[end]);
        done();
        continue;
      }
      snprintf(message, sizeof message, "c:1: %s: expected a whole number from %lld to %lld", text,
               (long long)k->least, (long long)k->most);
      refuses(text, message);
    }
  }
}

static void max_pending_goes_before_its_older_name(void **state) {
  (void)state;
  takes("result_queue_capacity=5");
  assert_int_equal(config.options.max_pending, 5);
  done();
  takes("result_queue_capacity=5\nmax_pending=9");
  assert_int_equal(config.options.max_pending, 9);
  done();
  takes("max_pending=9\nresult_queue_capacity=5");
  assert_int_equal(config.options.max_pending, 9);
  done();
}

static void has_handler(size_t i, uint32_t opcode, tp_config_kind kind, const char *name,
                        int line) {
  assert_true(i < config.handler_count);
  assert_int_equal(config.handlers[i].opcode, opcode);
  assert_int_equal(config.handlers[i].kind, kind);
  assert_string_equal(config.handlers[i].name, name);
  assert_int_equal(config.handlers[i].line, line);
}

static void handlers_keep_their_order_kind_and_line(void **state) {
  (void)state;
  takes("65535=last\n\n# no\n0=_first\n  007 \t=\t poll:Poll_2 \n8=blocking:slow # said\n9=h\t#");
  assert_int_equal(config.handler_count, 5);
  has_handler(0, 65535, TP_CONFIG_PLAIN, "last", 1);
  has_handler(1, 0, TP_CONFIG_PLAIN, "_first", 4);
  has_handler(2, 7, TP_CONFIG_POLL, "Poll_2", 5);
  has_handler(3, 8, TP_CONFIG_BLOCKING, "slow", 6);
  has_handler(4, 9, TP_CONFIG_PLAIN, "h", 7);
  done();
}

static void all_opcodes_fit_into_one_file(void **state) {
  (void)state;
  size_t room = TP_CONFIG_MAX_BYTES, n = 0;
  char *text = malloc(room);
  assert_non_null(text);
  for (int i = TP_CONFIG_MAX_OPCODE; i >= 0; i--)
    n += (size_t)snprintf(text + n, room - n, "%d=h%d\n", i, i);
  takes_bytes(text, n);
  assert_int_equal(config.handler_count, TP_CONFIG_MAX_OPCODE + 1);
  has_handler(0, TP_CONFIG_MAX_OPCODE, TP_CONFIG_PLAIN, "h65535", 1);
  has_handler(TP_CONFIG_MAX_OPCODE, 0, TP_CONFIG_PLAIN, "h0", TP_CONFIG_MAX_OPCODE + 1);
  done();
  n += (size_t)snprintf(text + n, room - n, "40000=again\n");
  refuses_bytes(text, n,
                "c:65537: 40000=again: opcode 40000 already given in line 25536, expected once");
  free(text);
}

static void endings_marks_and_comments_do_not_count(void **state) {
  (void)state;
  const char *same[] = {
      "thread_count=4\n1=h\n",
      "thread_count=4\n1=h",
      "thread_count=4\r\n1=h\r\n",
      "thread_count=4\r\n1=h\r",
      "\xEF\xBB\xBFthread_count=4\n1=h",
      "  thread_count =\t4  \n\t1 = h ",
      "thread_count=4 # four\n1=h\t# a handler = x",
      "thread_count=4 #\r\n1=h #\r\n",
  };
  for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
    takes(same[i]);
    assert_int_equal(config.options.workers, 4);
    assert_int_equal(config.handler_count, 1);
    has_handler(0, 1, TP_CONFIG_PLAIN, "h", 2);
    done();
  }
  const char *nothing[] = {"",
                           "\n",
                           "\r\n",
                           "#",
                           "# thread_count=x",
                           "   # =",
                           "\xEF\xBB\xBF",
                           "\n\n\n",
                           "\xEF\xBB\xBF#\r\n \t \r\n"};
  for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
    takes(nothing[i]);
    assert_int_equal(config.handler_count + config.plugin_count, 0);
    assert_int_equal(config.options.workers, 0);
    done();
  }
  assert_int_equal(tp_config_parse(&config, NULL, 0, NULL), 0);
  done();
  tp_config_free(NULL);
}

static void plugin_paths_are_relative_to_the_file(void **state) {
  (void)state;
  const char *text = "handlers=a b.so\nhandlers = /c.so # d\nhandlers=../e#f=g.so\n";
  static const struct {
    const char *file, *paths[3];
  } cases[] = {{"c", {"./a b.so", "/c.so", "./../e#f=g.so"}},
               {NULL, {"./a b.so", "/c.so", "./../e#f=g.so"}},
               {"/c", {"/a b.so", "/c.so", "/../e#f=g.so"}},
               {"x/y/c", {"x/y/a b.so", "/c.so", "x/y/../e#f=g.so"}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(tp_config_parse(&config, text, strlen(text), cases[i].file), 0);
    assert_int_equal(config.plugin_count, 3);
    for (int k = 0; k < 3; k++) {
      assert_string_equal(config.plugins[k].path, cases[i].paths[k]);
      assert_int_equal(config.plugins[k].line, k + 1);
    }
    done();
  }
}

/* --- mistakes ---------------------------------------------------------------------------------- */

#define KNOWN                                                                                      \
  " expected an opcode from 0 to 65535 or thread_count, blocking_threads, drain_ms, "              \
  "park_timeout_ms, idle_strategy, pin, max_pending, max_request_bytes, max_depth, window, "       \
  "initial_task_capacity, result_queue_capacity, handlers"
#define NAME ": expected a handler's name: 1 to 255 letters, digits and _, not a digit first"
#define LINE ": expected key=value or opcode=handler_name"

static void every_mistake_has_its_message(void **state) {
  (void)state;
  static const struct {
    const char *text, *message;
  } cases[] = {
      /* numbers */
      {"thread_count=abc", "c:1: thread_count=abc: expected a whole number from 0 to 1024"},
      {"#\n\nthread_count = 4x # y",
       "c:3: thread_count = 4x: expected a whole number from 0 to 1024"},
      {"thread_count=", "c:1: thread_count=: expected a whole number from 0 to 1024"},
      {"thread_count=# 4", "c:1: thread_count=# 4: expected a whole number from 0 to 1024"},
      {"thread_count=-", "c:1: thread_count=-: expected a whole number from 0 to 1024"},
      {"thread_count=+4", "c:1: thread_count=+4: expected a whole number from 0 to 1024"},
      {"thread_count=1 2", "c:1: thread_count=1 2: expected a whole number from 0 to 1024"},
      {"thread_count=0x4", "c:1: thread_count=0x4: expected a whole number from 0 to 1024"},
      {"thread_count=1025", "c:1: thread_count=1025: expected a whole number from 0 to 1024"},
      {"drain_ms=-2", "c:1: drain_ms=-2: expected a whole number from -1 to 86400000"},
      {"window=99999999999999999999999",
       "c:1: window=99999999999999999999999: expected a whole number from 0 to 1048576"},
      /* 2^64 + 4: a number that wraps around would be 4 */
      {"thread_count=18446744073709551620",
       "c:1: thread_count=18446744073709551620: expected a whole number from 0 to 1024"},
      {"18446744073709551620=h", "c:1: 18446744073709551620=h: expected an opcode from 0 to 65535"},
      /* words */
      {"idle_strategy=nap", "c:1: idle_strategy=nap: expected pause or yield"},
      {"idle_strategy=", "c:1: idle_strategy=: expected pause or yield"},
      {"pin=Yes", "c:1: pin=Yes: expected no or yes"},
      {"pin=1", "c:1: pin=1: expected no or yes"},
      /* paths */
      {"handlers=", "c:1: handlers=: expected the path of a shared object"},
      {"handlers=a\x01"
       "b.so",
       "c:1: handlers=a?b.so: expected the path of a shared object"},
      /* keys */
      {"thread_cout=4", "c:1: thread_cout=4: unknown key, did you mean thread_count?" KNOWN},
      {"Thread-Count=4", "c:1: Thread-Count=4: unknown key, did you mean thread_count?" KNOWN},
      {"workers=4", "c:1: workers=4: unknown key, did you mean thread_count?" KNOWN},
      {"initial_capacity=4",
       "c:1: initial_capacity=4: unknown key, did you mean initial_task_capacity?" KNOWN},
      {"pi=yes", "c:1: pi=yes: unknown key, did you mean pin?" KNOWN},
      {"handler=a.so", "c:1: handler=a.so: unknown key, did you mean handlers?" KNOWN},
      {"colour=red", "c:1: colour=red: unknown key;" KNOWN},
      {"p=1", "c:1: p=1: unknown key;" KNOWN},
      {"thread_count thread_count thread_count=1",
       "c:1: thread_count thread_count thread_count=1: unknown key;" KNOWN},
      /* twice */
      {"pin=no\n\nthread_count=1\r\nthread_count=2",
       "c:4: thread_count=2: already given in line 3, expected once"},
      {"pin=no\npin=no", "c:2: pin=no: already given in line 1, expected once"},
      {"3=a\n4=b\n03=c", "c:3: 03=c: opcode 3 already given in line 1, expected once"},
      /* opcodes */
      {"65536=h", "c:1: 65536=h: expected an opcode from 0 to 65535"},
      {"-1=h", "c:1: -1=h: expected an opcode from 0 to 65535"},
      {"+1=h", "c:1: +1=h: expected an opcode from 0 to 65535"},
      {"3x=h", "c:1: 3x=h: expected an opcode from 0 to 65535"},
      {"99999999999999999999=h", "c:1: 99999999999999999999=h: expected an opcode from 0 to 65535"},
      /* handlers */
      {"3=", "c:1: 3=" NAME},
      {"3= # none", "c:1: 3=" NAME},
      {"3=poll:", "c:1: 3=poll:" NAME},
      {"3=my-handler", "c:1: 3=my-handler" NAME},
      {"3=two words", "c:1: 3=two words" NAME},
      {"3=9lives", "c:1: 3=9lives" NAME},
      {"3=h\xC3\xA4ndler", "c:1: 3=h\xC3\xA4ndler" NAME},
      {"3=a=b", "c:1: 3=a=b" NAME},
      {"3=a#b", "c:1: 3=a#b" NAME},
      {"3=poll: x", "c:1: 3=poll: x" NAME},
      {"3=poll:blocking:x", "c:1: 3=poll:blocking:x" NAME},
      {"9=blocking-poll:x",
       "c:1: 9=blocking-poll:x: expected handler_name, poll:handler_name or blocking:handler_name"},
      {"9=:x", "c:1: 9=:x: expected handler_name, poll:handler_name or blocking:handler_name"},
      /* lines */
      {"pin", "c:1: pin" LINE},
      {"=3", "c:1: =3" LINE},
      {" = 3", "c:1: = 3" LINE},
      {"pin # =no", "c:1: pin" LINE},
      {"a\tb\rc", "c:1: a?b?c" LINE},
      {"pin=no\r\r\nx", "c:2: x" LINE},
      {"pin=no\rwindow=1", "c:1: pin=no?window=1: expected no or yes"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    refuses(cases[i].text, cases[i].message);
  /* The first one is told. */
  refuses("\n3=\n4=\nfoo", "c:2: 3=" NAME);
  refuses_bytes("#\npin=n\0o\n", 11, "c:2: a NUL byte: expected text in UTF-8");
  refuses_bytes("\xFF\xFEp\0i\0", 6, "c:1: a NUL byte: expected text in UTF-8");
}

/* Text of `n` bytes: `before`, then x. */
static char *filled(const char *before, size_t n) {
  char *text = malloc(n + 1);
  assert_non_null(text);
  memset(text, 'x', n);
  text[n] = 0;
  memcpy(text, before, strlen(before));
  return text;
}

static void sizes_are_limited(void **state) {
  (void)state;
  char *text = filled("\n#", TP_CONFIG_MAX_LINE + 1);
  takes(text);
  done();
  free(text);
  text = filled("#", TP_CONFIG_MAX_LINE + 2); /* CRLF is not part of the line */
  memcpy(text + TP_CONFIG_MAX_LINE, "\r\n", 2);
  takes(text);
  done();
  free(text);
  text = filled("\n#", TP_CONFIG_MAX_LINE + 2);
  refuses(text, "c:2: a line of 4097 bytes: expected at most 4096");
  free(text);

  text = filled("3=", 2 + TP_CONFIG_MAX_NAME);
  takes(text);
  assert_string_equal(config.handlers[0].name, text + 2);
  done();
  free(text);
  text = filled("3=", 3 + TP_CONFIG_MAX_NAME);
  assert_int_equal(tp_config_parse(&config, text, strlen(text), "c"), ERR_INVALID_ARGUMENT);
  assert_non_null(strstr(tp_said(), "xxx..." NAME)); /* what is long is cut */
  free(text);

  text = filled("", TP_CONFIG_MAX_BYTES + 1);
  for (int i = 0; i < TP_CONFIG_MAX_BYTES; i++) text[i] = i % 2 ? '\n' : '#';
  takes_bytes(text, TP_CONFIG_MAX_BYTES);
  done();
  refuses_bytes(text, TP_CONFIG_MAX_BYTES + 1,
                "c: more than 1 MiB: expected at most 1048576 bytes");
  free(text);
}

/* The longest message still has all that is accepted; a character is not cut in the middle. */
static void long_messages_keep_their_end(void **state) {
  (void)state;
  char file[400], text[400];
  memset(file, 'f', sizeof file);
  memcpy(file + sizeof file - 9, "/last/it", 9);
  memset(text, 'k', sizeof text);
  for (size_t i = 1; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xC3\xA4", 2);
  memcpy(text + 300, "=", 2);
  assert_int_equal(tp_config_parse(&config, text, strlen(text), file), ERR_INVALID_ARGUMENT);
  const char *said = tp_said();
  assert_memory_equal(said, "...fff", 6);
  assert_non_null(strstr(said, "/last/it:1: k\xC3\xA4"));
  assert_non_null(strstr(said, "\xC3\xA4...: unknown key;" KNOWN));
  assert_string_equal(said + strlen(said) - 10, ", handlers");
}

/* --- memory ------------------------------------------------------------------------------------ */

/* Leaks are seen by AddressSanitizer and valgrind, which end the program. */
static void running_out_of_memory_leaks_nothing(void **state) {
  (void)state;
  char text[4000];
  size_t n = 0;
  for (int i = 0; i < 40; i++)
    n += (size_t)snprintf(text + n, sizeof text - n, "%d=h\nhandlers=p%d.so\n", i, i);
  long nth = 1;
  for (;; nth++) {
    tp_fail_at(nth);
    memset(&config, 0x5A, sizeof config);
    int code = tp_config_parse(&config, text, n, "c");
    bool fired = tp_fail_left() == 0;
    tp_fail_at(0);
    if (!fired) {
      assert_int_equal(code, 0);
      break;
    }
    assert_int_equal(code, ERR_MALLOC_FAILED);
    assert_string_equal(tp_said(), "c: out of memory while it was read");
    is_empty();
  }
  assert_true(nth > 40); /* every path is one */
  assert_int_equal(config.handler_count, 40);
  assert_int_equal(config.plugin_count, 40);
  done();

  for (nth = 1; nth <= 3; nth++) { /* the file's text, its copy, the handlers */
    tp_fail_at(nth);
    assert_int_equal(tp_config_read(&config, "config/config"), ERR_MALLOC_FAILED);
    assert_int_equal(tp_fail_left(), 0);
    assert_string_equal(tp_said(), "config/config: out of memory while it was read");
    is_empty();
  }
}

/* --- the file that ships ------------------------------------------------------------------------- */

/* As it is: seed 5's opcodes and ours, else the defaults. With every # before a key removed: the presets of the
 * table, each with a comment before it. */
static void the_file_that_ships_is_right(void **state) {
  (void)state;
  static const threadpool_options defaults;
  static const char *const names[] = {"updater",      "http_get",    "http_post",
                                      "write_memory", "read_memory", "file_read",
                                      "file_write",   "sleep",       "echo"};
  assert_int_equal(tp_config_read(&config, "config/config"), 0);
  assert_memory_equal(&config.options, &defaults, sizeof defaults);
  assert_int_equal(config.plugin_count, 0);
  assert_int_equal(config.handler_count, 9);
  for (size_t i = 0; i < 9; i++) {
    char name[64];
    snprintf(name, sizeof name, "handler_%s", names[i]);
    has_handler(i, (uint32_t)i, TP_CONFIG_PLAIN, name, config.handlers[i].line);
  }
  done();

  char text[10000] = "\n";
  FILE *f = fopen("config/config", "r");
  assert_non_null(f);
  size_t n = fread(text + 1, 1, sizeof text - 2, f);
  assert_in_range(n, 1000, sizeof text - 3);
  fclose(f);
  for (size_t i = 0; i < TP_CONFIG_KEYS; i++) {
    const tp_config_key *k = &tp_config_keys[i];
    char line[100];
    snprintf(line, sizeof line, "\n#%s=%s%s", k->name, k->preset, *k->preset ? "\n" : "");
    char *at = strstr(text, line);
    if (!at) print_error("not in config/config: %s\n", line + 1);
    assert_non_null(at);
    at[1] = ' ';
    char *before = at;
    while (before > text && before[-1] != '\n') before--;
    assert_memory_equal(before, "# ", 2);
  }
  takes(text);
  threadpool_options o = config.options;
  assert_true(o.workers == 0 && o.blocking == 512 && o.drain_ms == 5000 && o.park_timeout_ms == 0);
  assert_true(!o.idle_yield && !o.pin && o.max_pending == 65536);
  assert_true(o.max_request_bytes == 64 << 20 && o.max_depth == 512 && o.window == 64);
  assert_true(o.initial_capacity == 256 && config.plugin_count == 1);
  done();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_key_sets_its_option),
      cmocka_unit_test(every_number_has_its_range),
      cmocka_unit_test(max_pending_goes_before_its_older_name),
      cmocka_unit_test(handlers_keep_their_order_kind_and_line),
      cmocka_unit_test(all_opcodes_fit_into_one_file),
      cmocka_unit_test(endings_marks_and_comments_do_not_count),
      cmocka_unit_test(plugin_paths_are_relative_to_the_file),
      cmocka_unit_test(every_mistake_has_its_message),
      cmocka_unit_test(sizes_are_limited),
      cmocka_unit_test(long_messages_keep_their_end),
      cmocka_unit_test(running_out_of_memory_leaks_nothing),
      cmocka_unit_test(the_file_that_ships_is_right),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
