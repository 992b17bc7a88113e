/* test_files.c - file_read and file_write: what is no regular file, ranges, links, modes, what is half written. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "help.h"

static threadpool_t *pool;
static char directory[64], path[200];

static int begin(void **state) {
  (void)state;
  strcpy(directory, "/tmp/threadpool-test-XXXXXX");
  pool = test_pool((threadpool_options){.workers = 1});
  return mkdtemp(directory) ? 0 : -1;
}
/* A hang would be seen here: shutdown waits for what blocks. */
static int end(void **state) {
  (void)state;
  char command[100];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  return threadpool_shutdown(pool) || system(command);
}

static const char *in(const char *name) {
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}
/* The operation with `path`: its status; on success its data are `text`, else its message contains it. */
static void gives(const char *op, const char *rest, int status, const char *text) {
  char json[1000];
  snprintf(json, sizeof json, "{\"op\": \"%s\", \"args\": {\"path\": \"%s\"%s}}", op, path, rest);
  result_t *r = threadpool_wait_result(pool, threadpool_submit(pool, json), 60000);
  assert_non_null(r);
  if (r->status != status) fail_msg("%s: %d %s", json, r->status, r->error_msg);
  if (status == 0 && text) {
    assert_non_null(r->data);
    assert_string_equal(r->data, text);
    assert_int_equal(r->data_size, strlen(text));
  } else if (status && !strstr(r->error_msg, text)) {
    fail_msg("%s: %s", r->error_msg, text);
  }
  threadpool_result_free(r);
}
static mode_t mode_of(const char *p) {
  struct stat s;
  assert_int_equal(stat(p, &s), 0);
  return s.st_mode & 07777;
}
static int names_in_directory(void) {
  char command[100];
  int n = 0;
  snprintf(command, sizeof command, "ls -A %s | wc -l", directory);
  FILE *f = popen(command, "r");
  assert_int_equal(fscanf(f, "%d", &n), 1);
  pclose(f);
  return n;
}

#define WRITE  ", \"data\": \"x\""
#define APPEND ", \"data\": \"x\", \"append\": true"

static void what_is_no_regular_file_is_refused(void **state) {
  (void)state;
  assert_int_equal(mkfifo(in("fifo"), 0600), 0);
  gives("file_read", "", ERR_IO, "expected a regular file, it is a FIFO");
  gives("file_write", WRITE, ERR_IO, "expected a regular file, it is a FIFO");
  gives("file_write", APPEND, ERR_IO, "expected a regular file, it is a FIFO");
  assert_int_equal(mkdir(in("directory"), 0700), 0);
  gives("file_read", "", ERR_IO, "it is a directory");
  gives("file_write", WRITE, ERR_IO, "it is a directory");
  gives("file_write", APPEND, ERR_IO, "it is a directory");
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  memcpy(a.sun_path, in("socket"), sizeof a.sun_path - 1); /* path is longer, and has its zero */
  int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  gives("file_read", "", ERR_IO, "it is a socket");
  gives("file_write", WRITE, ERR_IO, "it is a socket");
  close(fd);
  snprintf(path, sizeof path, "/dev/full");
  gives("file_read", "", ERR_IO, "it is a device");
  gives("file_write", WRITE, ERR_IO, "it is a device");
  gives("file_write", APPEND, ERR_IO, "it is a device");
  snprintf(path, sizeof path, "/proc/self/status"); /* a regular one, of size 0 */
  gives("file_read", ", \"length\": 5", 0, "Name:");
}

static void ranges_and_limits(void **state) {
  (void)state;
  in("file");
  gives("file_write", ", \"data\": \"0123456789\"", 0, NULL);
  gives("file_read", "", 0, "0123456789");
  gives("file_read", ", \"offset\": 9", 0, "9");
  gives("file_read", ", \"offset\": 10", 0, "");
  gives("file_read", ", \"offset\": 1000", 0, "");
  gives("file_read", ", \"offset\": 3, \"length\": 1000", 0, "3456789");
  gives("file_read", ", \"length\": 4, \"max_bytes\": 4", 0, "0123");
  gives("file_read", ", \"max_bytes\": 10", 0, "0123456789");
  gives("file_read", ", \"length\": 1000, \"max_bytes\": 10", 0, "0123456789");
  gives("file_read", ", \"length\": 5, \"max_bytes\": 4", ERR_IO, "more than 4 bytes");
  gives("file_read", ", \"max_bytes\": 9", ERR_IO, "more than 9 bytes");
  gives("file_read", ", \"max_bytes\": 0", ERR_IO, "more than 0 bytes");
  gives("file_read", ", \"offset\": 9223372036854775807", ERR_INVALID_ARGUMENT, "\"offset\"");
  gives("file_read", ", \"max_bytes\": 4294967295", ERR_INVALID_ARGUMENT, "\"max_bytes\"");
  gives("file_read", ", \"offset\": -1", ERR_INVALID_ARGUMENT, "\"offset\"");
  result_t *r = threadpool_wait_result(
      pool, threadpool_submit(pool, "{\"op\": \"file_read\", \"args\": {\"path\": \"a\\u0000b\"}}"),
      60000);
  assert_int_equal(r->status, ERR_INVALID_ARGUMENT);
  threadpool_result_free(r);
}

/* Larger than what is read at once, with and without a size to expect. */
static void a_large_file_comes_whole(void **state) {
  (void)state;
  enum { SIZE = 5 << 20 };
  char *data = malloc(SIZE), json[300];
  for (int i = 0; i < SIZE; i++) data[i] = (char)(i * 31 / 7);
  FILE *f = fopen(in("large"), "w");
  assert_int_equal(fwrite(data, 1, SIZE, f), SIZE);
  fclose(f);
  for (int offset = 0; offset < 2000000; offset += 999999) {
    snprintf(json, sizeof json,
             "{\"op\": \"file_read\", \"args\": {\"path\": \"%s\", \"offset\": %d}}", path, offset);
    result_t *r = threadpool_wait_result(pool, threadpool_submit(pool, json), 60000);
    assert_int_equal(r->status, 0);
    assert_int_equal(r->data_size, SIZE - offset);
    assert_memory_equal(r->data, data + offset, SIZE - offset);
    threadpool_result_free(r);
  }
  free(data);
}

static void links_are_followed(void **state) {
  (void)state;
  char link[200];
  in("target");
  gives("file_write", WRITE, 0, NULL);
  snprintf(link, sizeof link, "%s/link", directory);
  assert_int_equal(symlink("target", link), 0);
  in("link");
  gives("file_write", ", \"data\": \"by the link\"", 0, NULL);
  struct stat s;
  assert_int_equal(lstat(link, &s), 0);
  assert_true(S_ISLNK(s.st_mode));
  in("target");
  gives("file_read", "", 0, "by the link");
  assert_int_equal(symlink("nowhere", in("dangling")), 0);
  gives("file_write", WRITE, ERR_IO, "cannot follow the link");
}

static void modes_are_kept_and_the_umask_counts(void **state) {
  (void)state;
  mode_t before = umask(027);
  gives("file_write", (in("new"), WRITE), 0, NULL);
  assert_int_equal(mode_of(path), 0640);
  assert_int_equal(chmod(path, 0600), 0);
  gives("file_write", WRITE, 0, NULL); /* wrong: what was private can be read by all */
  assert_int_equal(mode_of(path), 0600);
  gives("file_write", WRITE ", \"mode\": 511", 0, NULL);
  assert_int_equal(mode_of(path), 0750);
  gives("file_write", (in("appended"), APPEND ", \"mode\": 511"), 0, NULL);
  assert_int_equal(mode_of(path), 0750);
  gives("file_write", WRITE ", \"mode\": 4096", ERR_INVALID_ARGUMENT, "\"mode\"");
  umask(before);
  char longest[260];
  memset(longest, 'n', 255);
  longest[255] = '\0';
  char json[1000]; /* its temporary file has a shorter name */
  snprintf(json, sizeof json,
           "{\"op\": \"file_write\", \"args\": {\"path\": \"%s/%s\", \"data\": \"x\"}}", directory,
           longest);
  result_t *r = threadpool_wait_result(pool, threadpool_submit(pool, json), 60000);
  assert_int_equal(r->status, 0);
  threadpool_result_free(r);
}

/* The file system is full: by a limit of the process, which a test can set. */
static void a_full_disk_is_told_and_leaves_no_temporary_file(void **state) {
  (void)state;
  gives("file_write", (in("file"), ", \"data\": \"0123456789\""), 0, NULL);
  int names = names_in_directory();
  struct rlimit before, limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = before;
  limit.rlim_cur = 15;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  gives("file_write", ", \"data\": \"abcdefghij\", \"append\": true", ERR_IO,
        "cannot append: File too large (5 of 10 bytes were)");
  gives("file_write", ", \"data\": \"abcdefghijabcdefghij\"", ERR_IO,
        "cannot write: File too large");
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_DFL);
  gives("file_read", "", 0, "0123456789abcde"); /* the old contents */
  assert_int_equal(names_in_directory(), names);
}

static void a_message_shows_any_path(void **state) {
  (void)state;
  memset(path, 'a', 140);
  strcpy(path + 140, "\xC3\xBC\xC3\xBC\xC3\xBC\xC3\xBC\xC3\xBC\xC3\xBC\\u0007");
  gives("file_read", "", ERR_IO, "...: cannot open: No such file");
  snprintf(path, sizeof path, "a\\u0007\\u0085b");
  gives("file_read", "", ERR_IO, "a\\u0007\\u0085b: cannot open");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_is_no_regular_file_is_refused, begin, end),
      cmocka_unit_test_setup_teardown(ranges_and_limits, begin, end),
      cmocka_unit_test_setup_teardown(a_large_file_comes_whole, begin, end),
      cmocka_unit_test_setup_teardown(links_are_followed, begin, end),
      cmocka_unit_test_setup_teardown(modes_are_kept_and_the_umask_counts, begin, end),
      cmocka_unit_test_setup_teardown(a_full_disk_is_told_and_leaves_no_temporary_file, begin, end),
      cmocka_unit_test_setup_teardown(a_message_shows_any_path, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
