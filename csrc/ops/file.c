/* file.c - file_read and file_write. Blocking: they run on threads of their own, never on a worker. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/atomic.h"
#include "base/text.h"
#include "ops/builtin.h"

enum { READ_MOST = 64 << 20, PIECE = 1 << 20, FIRST = 4096, NAMES = 100, SHOWN = 150 };

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
typedef struct shown {
  char text[SHOWN];
} shown;
static shown show(const char *path) {
  shown s = {""};
  tp_text_show(s.text, sizeof s.text, path, strlen(path));
  return s;
}
static void failed(task_t *task, const char *path, const char *what) {
  int error = errno;
  threadpool_fail(task, ERR_IO, "%s: %s: %s", show(path).text, what, strerror(error));
}
/* It has noticed, and what it has done so far is not what was asked for. */
static void was_cancelled(task_t *task) {
  threadpool_fail(task, ERR_CANCELLED, "%s", threadpool_error_text(ERR_CANCELLED));
}
/* Others may block for ever, or are replaced by a plain file: a device by who may write to /dev. */
static bool regular(task_t *task, const char *path, const struct stat *s) {
  if (S_ISREG(s->st_mode)) return true;
  threadpool_fail(task, ERR_IO, "%s: expected a regular file, it is a %s", show(path).text,
                  S_ISDIR(s->st_mode)    ? "directory"
                  : S_ISFIFO(s->st_mode) ? "FIFO"
                  : S_ISSOCK(s->st_mode) ? "socket"
                                         : "device");
  return false;
}
/* O_NONBLOCK: a FIFO without its other end is seen, not waited for. */
static int open_regular(task_t *task, const char *path, int flags, mode_t mode, const char *what,
                        struct stat *s) {
  int fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode);
  if (fd < 0 && (errno == ENXIO || errno == EISDIR) && stat(path, s) == 0 &&
      !regular(task, path, s))
    return -1;
  if (fd < 0 || fstat(fd, s) != 0) {
    failed(task, path, what);
  } else if (regular(task, path, s)) {
    return fd;
  }
  if (fd >= 0) close(fd);
  return -1;
}
static void free_data(void *data, void *arg) {
  (void)arg;
  tp_put(data);
}

/* {"path": ..., "offset": 0, "length": to the end, "max_bytes": 64 MiB} */
void tp_op_file_read(task_t *task) {
  if (!tp_args_known(task, "path, offset, length, max_bytes")) return;
  const char *path = path_of(task);
  uint64_t offset = 0, length = UINT64_MAX, most = READ_MOST;
  if (!path || !tp_arg_whole(task, "offset", &offset) || !tp_arg_whole(task, "length", &length) ||
      !tp_arg_whole(task, "max_bytes", &most))
    return;
  if (most >= UINT32_MAX || offset > INT64_MAX - UINT32_MAX) {
    threadpool_fail(task, ERR_INVALID_ARGUMENT, "argument \"%s\": too large",
                    most >= UINT32_MAX ? "max_bytes" : "offset");
    return;
  }
  struct stat s;
  int fd = open_regular(task, path, O_RDONLY, 0, "cannot open", &s);
  if (fd < 0) return;
  /* As it is now; it may grow, and what is made when it is read (/proc) has size 0. */
  uint64_t expected = s.st_size > 0 && (uint64_t)s.st_size > offset ? s.st_size - offset : 0;
  char *data = NULL;
  size_t size = 0, room = 0;
  while (size < length) {
    if (threadpool_cancelled(task)) {
      was_cancelled(task);
      break;
    }
    bool full = size == most; /* one byte more tells whether that is all */
    uint64_t want = length - size;
    if (want > PIECE) want = PIECE;
    if (want > most - size) want = most - size + 1;
    if (size + want + 1 > room && want > FIRST && size >= expected) want = FIRST; /* the end? */
    if (size + want + 1 > room) {
      room = size + want + 1 + room / 2;
      char *larger = tp_resize(data, room);
      if (!larger) {
        threadpool_fail(task, ERR_MALLOC_FAILED, "%s: out of memory after %zu bytes",
                        show(path).text, size);
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
    if (n == 0) break;
    size += (size_t)n;
    if (full || size > most) {
      threadpool_fail(task, ERR_IO,
                      "%s: more than %llu bytes: give max_bytes, or offset and length",
                      show(path).text, (unsigned long long)most);
      break;
    }
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

/* How much was written; less than length: errno. */
static size_t write_all(int fd, const char *data, size_t length) {
  size_t done = 0;
  while (done < length) {
    ssize_t n = write(fd, data + done, length - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += (size_t)n;
  }
  return done;
}

/* A name that is not taken; the process's umask counts. */
static int make_temporary(int directory, char name[32], mode_t mode) {
  static _Atomic unsigned count;
  for (int i = 0; i < NAMES; i++) {
    unsigned n = tp_add(&count, 1, relaxed); /* only to differ */
    snprintf(name, 32, ".tp-%ld-%u", (long)getpid(), n);
    int fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

/* The directory that `path` is in, and in *name what follows. */
static int open_directory(const char *path, const char **name) {
  char directory[PATH_MAX];
  const char *slash = strrchr(path, '/');
  *name = slash ? slash + 1 : path;
  size_t length = slash ? (size_t)(slash - path) + 1 : 1;
  memcpy(directory, slash ? path : ".", length);
  directory[length] = '\0';
  int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 && errno == EACCES ? open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC) : fd;
}

/* By a temporary file in the same directory, which takes its name: a reader sees the old contents or the new, also
 * after a power failure. */
static void replace(task_t *task, const char *path, const char *data, size_t length, mode_t mode,
                    bool keep_mode) {
  char target[PATH_MAX];
  struct stat s;
  bool exists = lstat(path, &s) == 0;
  if (exists && S_ISLNK(s.st_mode)) { /* what it points to is written, not the link */
    if (!realpath(path, target) || stat(target, &s) != 0) {
      failed(task, path, "cannot follow the link");
      return;
    }
    path = target;
  }
  if (exists && !regular(task, path, &s)) return;
  const char *name;
  int directory = open_directory(path, &name);
  if (directory < 0) {
    failed(task, path, "cannot open its directory");
    return;
  }
  char temporary[32];
  int fd = make_temporary(directory, temporary, mode);
  if (fd < 0) {
    failed(task, path, "cannot make a temporary file beside it");
    close(directory);
    return;
  }
  bool ok = (!exists || !keep_mode || fchmod(fd, s.st_mode & 07777) == 0) &&
            write_all(fd, data, length) == length && fsync(fd) == 0;
  int error = errno;
  if (close(fd) != 0 && ok) ok = false, error = errno;
  bool stop = ok && threadpool_cancelled(task);
  if (ok && !stop && renameat(directory, temporary, directory, name) != 0)
    ok = false, error = errno;
  if (!ok || stop) unlinkat(directory, temporary, 0);
  errno = error;
  if (stop)
    was_cancelled(task);
  else if (!ok)
    failed(task, path, "cannot write");
  else
    fsync(directory); /* as good as it gets: it is written, and not every file system can */
  close(directory);
}

static void append_to(task_t *task, const char *path, const char *data, size_t length,
                      mode_t mode) {
  struct stat s;
  int fd = open_regular(task, path, O_WRONLY | O_CREAT | O_APPEND, mode, "cannot open", &s);
  if (fd < 0) return;
  size_t done = write_all(fd, data, length);
  int error = errno;
  if (close(fd) != 0 && done == length) done = 0, error = errno;
  if (done < length)
    threadpool_fail(task, ERR_IO, "%s: cannot append: %s (%zu of %zu bytes were)", show(path).text,
                    strerror(error), done, length);
}

/* {"path": ..., "data": text, "append": false, "mode": 0644 as a number (420), "make_directories": false}. The mode, less the
 * umask, is that of a file that is made; one that is replaced keeps its own unless a mode is given. */
void tp_op_file_write(task_t *task) {
  if (!tp_args_known(task, "path, data, append, mode, make_directories")) return;
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
  if (append)
    append_to(task, path, data, length, (mode_t)mode);
  else
    replace(task, path, data, length, (mode_t)mode, !threadpool_arg_is(task, "mode"));
}
