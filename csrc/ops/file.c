/* file.c - file_read and file_write. Blocking: they run on threads of their own, never on a worker. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ops/builtin.h"

enum { READ_MOST = 64 << 20, PIECE = 1 << 20 };

static bool flag(task_t *task, const char *name, bool *value) {
  if (!threadpool_arg_is(task, name) || threadpool_arg_bool(task, name, value)) return true;
  threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"%s\": expected true or false", name);
  return false;
}
static const char *path_of(task_t *task) {
  const char *path;
  size_t length;
  if (threadpool_arg_text(task, "path", &path, &length) && length > 0 && length < PATH_MAX &&
      strlen(path) == length)
    return path;
  threadpool_fail(task, ERR_INVALID_ARGUMENT,
                  "argument \"path\": expected a path, 1 to %d bytes without a zero", PATH_MAX - 1);
  return NULL;
}
static void failed(task_t *task, const char *path, const char *what) {
  threadpool_fail(task, ERR_IO, "%.150s: %s: %s", path, what, strerror(errno));
}
static void free_data(void *data, void *arg) {
  (void)arg;
  free(data);
}

/* {"path": ..., "offset": 0, "length": to the end, "max_bytes": 64 MiB} */
void tp_op_file_read(task_t *task) {
  const char *path = path_of(task);
  uint64_t offset = 0, length = UINT64_MAX, most = READ_MOST;
  if (!path || !tp_arg_whole(task, "offset", &offset) || !tp_arg_whole(task, "length", &length) ||
      !tp_arg_whole(task, "max_bytes", &most))
    return;
  if (offset > INT64_MAX || most >= UINT32_MAX) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "offset or max_bytes: too large");
    return;
  }
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    failed(task, path, "cannot open");
    return;
  }
  char *data = NULL;
  size_t size = 0, room = 0;
  bool whole = false;
  while (!whole && size < length && !threadpool_cancelled(task)) {
    if (size == most) { /* is there more? */
      char more;
      if (pread(fd, &more, 1, (off_t)(offset + size)) == 0) break;
      threadpool_fail(task, ERR_IO,
                      "%.150s: more than %llu bytes: give max_bytes, or offset and length", path,
                      (unsigned long long)most);
      break;
    }
    uint64_t want = length - size;
    if (want > most - size) want = most - size;
    if (want > PIECE) want = PIECE;
    if (size + want + 1 > room) {
      room = size + want + 1 + room / 2;
      char *larger = realloc(data, room);
      if (!larger) {
        threadpool_fail(task, ERR_MALLOC_FAILED, "%.150s: out of memory after %zu bytes", path,
                        size);
        break;
      }
      data = larger;
    }
    ssize_t n = pread(fd, data + size, want, (off_t)(offset + size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      failed(task, path, "cannot read");
      break;
    }
    size += (size_t)n;
    whole = n == 0;
  }
  close(fd);
  if (data) data[size] = '\0';
  threadpool_return(task, data, size, free_data, NULL); /* discarded if it has failed */
}

static int make_directories(const char *path) {
  char part[PATH_MAX];
  snprintf(part, sizeof part, "%s", path);
  for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    if (mkdir(part, 0777) != 0 && errno != EEXIST) return -1;
    *slash = '/';
  }
  return 0;
}

static bool write_all(int fd, const char *data, size_t length) {
  while (length > 0) {
    ssize_t n = write(fd, data, length);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    data += n;
    length -= (size_t)n;
  }
  return true;
}

/* By a temporary file beside it, which takes its name: a reader sees the old contents or the new. */
static void replace(task_t *task, const char *path, const char *data, size_t length, mode_t mode) {
  char temporary[PATH_MAX + 16];
  snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
  int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) {
    failed(task, path, "cannot make a temporary file beside it");
    return;
  }
  bool ok = fchmod(fd, mode) == 0 && write_all(fd, data, length) && fsync(fd) == 0;
  int error = errno;
  if (close(fd) != 0 && ok) ok = false, error = errno;
  if (ok && !threadpool_cancelled(task)) {
    if (rename(temporary, path) == 0) return;
    error = errno;
  }
  unlink(temporary);
  errno = error;
  if (!threadpool_cancelled(task)) failed(task, path, "cannot write");
}

/* {"path": ..., "data": text, "append": false, "mode": 0644 as a number (420), "make_directories": false} */
void tp_op_file_write(task_t *task) {
  const char *path = path_of(task), *data;
  size_t length;
  uint64_t mode = 0644;
  bool append = false, directories = false;
  if (!path || !tp_arg_whole(task, "mode", &mode) || !flag(task, "append", &append) ||
      !flag(task, "make_directories", &directories))
    return;
  if (!threadpool_arg_text(task, "data", &data, &length)) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"data\": expected a string");
    return;
  }
  if (mode > 07777) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT,
                    "argument \"mode\": expected a number from 0 to 4095");
    return;
  }
  if (directories && make_directories(path) != 0) {
    failed(task, path, "cannot make its directories");
    return;
  }
  if (!append) {
    replace(task, path, data, length, (mode_t)mode);
    return;
  }
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, (mode_t)mode);
  if (fd < 0 || !write_all(fd, data, length)) failed(task, path, "cannot append");
  if (fd >= 0 && close(fd) != 0) failed(task, path, "cannot append");
}
