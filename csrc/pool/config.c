/* config.c - the reader of config files: a loop over lines. Rules C1..C5: config.h. */
#include "pool/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "pool/config_keys.h"

/* --- one reading ------------------------------------------------------------------------------- */

typedef struct reader {
  tp_config *config;
  const char *file;
  int line;                                      /* from 1 */
  int given[TP_CONFIG_KEYS];                     /* the line of each key; 0 = not yet */
  uint8_t opcodes[TP_CONFIG_MAX_OPCODE / 8 + 1]; /* a bit for each opcode that was given */
  size_t handler_room, plugin_room;
} reader;

/* A piece of the text. Ends with a zero only where that is said. */
typedef struct piece {
  char *at;
  size_t length;
} piece;

enum { SHOWN_FILE = 120, SHOWN_THING = 80 };

/* The end of a long path, as that is what tells files apart. */
static const char *shown_file(const char *file, const char **dots) {
  size_t length = strlen(file);
  *dots = length > SHOWN_FILE ? "..." : "";
  return length > SHOWN_FILE ? file + length - SHOWN_FILE : file;
}

/* C3. The thing is shown as it was written, but control characters as ?, and cut if it is long. */
static int wrong(const reader *r, const char *thing, size_t length, const char *expected) {
  char shown[SHOWN_THING + 4];
  size_t n = length < SHOWN_THING ? length : SHOWN_THING;
  if (n < length) /* not in the middle of a UTF-8 sequence */
    while (n > 0 && ((unsigned char)thing[n] & 0xC0) == 0x80) n--;
  for (size_t i = 0; i < n; i++) {
    unsigned char byte = (unsigned char)thing[i];
    shown[i] = byte < ' ' || byte == 127 ? '?' : thing[i];
  }
  memcpy(shown + n, n < length ? "..." : "", n < length ? 4 : 1);
  const char *dots, *file = shown_file(r->file, &dots);
  return tp_say(ERR_INVALID_ARGUMENT, "%s%s:%d: %s: %s", dots, file, r->line, shown, expected);
}

static int no_memory(const char *file) {
  const char *dots, *shown = shown_file(file, &dots);
  return tp_say(ERR_MALLOC_FAILED, "%s%s: out of memory while it was read", dots, shown);
}

static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

static piece trimmed(char *at, const char *end) {
  while (at < end && is_space(*at)) at++;
  while (end > at && is_space(end[-1])) end--;
  return (piece){at, (size_t)(end - at)};
}

static bool equals(piece p, const char *word) {
  return p.length == strlen(word) && memcmp(p.at, word, p.length) == 0;
}

/* Room for one more. The array is full when `count` has come to `*room`. */
static void *grown(void *array, size_t count, size_t *room, size_t size) {
  if (count < *room) return array;
  size_t more = *room ? 2 * *room : 16;
  void *bigger = tp_alloc(more * size);
  if (!bigger) return NULL;
  if (count) memcpy(bigger, array, count * size);
  tp_free(array);
  *room = more;
  return bigger;
}

/* Digits, a minus before them allowed. What is too big for the type is out of any range of ours as well. */
static bool number_of(piece p, int64_t least, int64_t most, int64_t *out) {
  bool minus = p.length > 0 && p.at[0] == '-';
  int64_t n = 0;
  if (p.length == (size_t)minus) return false;
  for (size_t i = minus; i < p.length; i++) {
    if (p.at[i] < '0' || p.at[i] > '9') return false;
    n = n * 10 + (p.at[i] - '0');
    if (n > INT32_MAX) return false;
  }
  *out = minus ? -n : n;
  return *out >= least && *out <= most;
}

static int unknown_key(const reader *r, piece whole, piece key) {
  char expected[512];
  const char *meant = tp_config_key_meant(key.at, key.length);
  int n = snprintf(
      expected, sizeof expected, "unknown key%s%s%s expected an opcode from 0 to %d or",
      meant ? ", did you mean " : ";", meant ? meant : "", meant ? "?" : "", TP_CONFIG_MAX_OPCODE);
  for (size_t i = 0; i < TP_CONFIG_KEYS; i++)
    n += snprintf(expected + n, sizeof expected - (size_t)n, "%s %s", i ? "," : "",
                  tp_config_keys[i].name);
  return wrong(r, whole.at, whole.length, expected);
}

/* --- the kinds of lines ------------------------------------------------------------------------ */

static int read_plugin(reader *r, piece whole, piece value) {
  tp_config *c = r->config;
  bool good = value.length > 0;
  for (size_t i = 0; i < value.length; i++) good &= (unsigned char)value.at[i] >= ' ';
  if (!good) return wrong(r, whole.at, whole.length, "expected the path of a shared object");

  tp_config_plugin *plugins =
      grown(c->plugins, c->plugin_count, &r->plugin_room, sizeof *c->plugins);
  if (!plugins) return no_memory(r->file);
  c->plugins = plugins;

  /* Without a slash dlopen would look elsewhere, so "./" goes before where the file has no directory. */
  const char *slash = strrchr(r->file, '/'), *directory = slash ? r->file : "./";
  size_t before = value.at[0] == '/' ? 0 : slash ? (size_t)(slash - r->file) + 1 : 2;
  char *path = tp_alloc(before + value.length + 1);
  if (!path) return no_memory(r->file);
  memcpy(path, directory, before);
  memcpy(path + before, value.at, value.length);
  c->plugins[c->plugin_count++] = (tp_config_plugin){path, r->line};
  return 0;
}

static int read_key(reader *r, piece whole, piece name, piece value) {
  char expected[128];
  size_t index = 0;
  while (index < TP_CONFIG_KEYS && !equals(name, tp_config_keys[index].name)) index++;
  if (index == TP_CONFIG_KEYS) return unknown_key(r, whole, name);
  const tp_config_key *key = &tp_config_keys[index];
  if (key->kind == TP_KEY_PATH) return read_plugin(r, whole, value);
  if (r->given[index]) {
    snprintf(expected, sizeof expected, "already given in line %d, expected once", r->given[index]);
    return wrong(r, whole.at, whole.length, expected);
  }
  r->given[index] = r->line;

  int64_t n = 0;
  if (key->kind == TP_KEY_WORD) {
    n = equals(value, key->yes);
    if (!n && !equals(value, key->no)) {
      snprintf(expected, sizeof expected, "expected %s or %s", key->no, key->yes);
      return wrong(r, whole.at, whole.length, expected);
    }
  } else if (!number_of(value, key->least, key->most, &n)) {
    snprintf(expected, sizeof expected, "expected a whole number from %lld to %lld",
             (long long)key->least, (long long)key->most);
    return wrong(r, whole.at, whole.length, expected);
  }

  for (size_t i = 0; key->weak && i < TP_CONFIG_KEYS; i++)
    if (i != index && r->given[i] && tp_config_keys[i].offset == key->offset) return 0;
  char *member = (char *)&r->config->options + key->offset;
  switch (key->kind) {
  case TP_KEY_INT: *(int *)(void *)member = (int)n; break;
  case TP_KEY_UINT32: *(uint32_t *)(void *)member = (uint32_t)n; break;
  default: *(bool *)(void *)member = n != 0; break;
  }
  return 0;
}

static bool is_identifier(piece p) {
  if (p.length == 0 || p.length > TP_CONFIG_MAX_NAME) return false;
  for (size_t i = 0; i < p.length; i++) {
    char c = p.at[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && (i == 0 || c < '0' || c > '9')) return false;
  }
  return true;
}

/* Cuts "poll:" and "blocking:" off. False: something else stands before the colon. */
static bool kind_of(piece *value, tp_config_kind *kind) {
  char *colon = memchr(value->at, ':', value->length);
  *kind = TP_CONFIG_PLAIN;
  if (!colon) return true;
  piece word = {value->at, (size_t)(colon - value->at)};
  *kind = equals(word, "poll") ? TP_CONFIG_POLL : TP_CONFIG_BLOCKING;
  value->length -= word.length + 1;
  value->at = colon + 1;
  return *kind == TP_CONFIG_POLL || equals(word, "blocking");
}

static int read_handler(reader *r, piece whole, piece number, piece value) {
  tp_config *c = r->config;
  char expected[128];
  int64_t opcode;
  if (!number_of(number, 0, TP_CONFIG_MAX_OPCODE, &opcode)) {
    snprintf(expected, sizeof expected, "expected an opcode from 0 to %d", TP_CONFIG_MAX_OPCODE);
    return wrong(r, whole.at, whole.length, expected);
  }
  uint8_t bit = (uint8_t)(1 << opcode % 8);
  if (r->opcodes[opcode / 8] & bit) {
    size_t i = 0;
    while (c->handlers[i].opcode != opcode) i++;
    snprintf(expected, sizeof expected, "opcode %d already given in line %d, expected once",
             (int)opcode, c->handlers[i].line);
    return wrong(r, whole.at, whole.length, expected);
  }

  tp_config_kind kind;
  if (!kind_of(&value, &kind))
    return wrong(r, whole.at, whole.length,
                 "expected handler_name, poll:handler_name or blocking:handler_name");
  if (!is_identifier(value)) {
    snprintf(expected, sizeof expected,
             "expected a handler's name: 1 to %d letters, digits and _, not a digit first",
             TP_CONFIG_MAX_NAME);
    return wrong(r, whole.at, whole.length, expected);
  }

  tp_config_handler *handlers =
      grown(c->handlers, c->handler_count, &r->handler_room, sizeof *c->handlers);
  if (!handlers) return no_memory(r->file);
  c->handlers = handlers;
  value.at[value.length] = 0; /* the line's end, a space before it, or the zero behind the text */
  handlers[c->handler_count++] = (tp_config_handler){(uint32_t)opcode, kind, value.at, r->line};
  r->opcodes[opcode / 8] |= bit;
  return 0;
}

static int read_line(reader *r, char *at, size_t length) {
  char expected[64];
  if (length > 0 && at[length - 1] == '\r') length--;
  if (length > TP_CONFIG_MAX_LINE) {
    snprintf(expected, sizeof expected, "expected at most %d", TP_CONFIG_MAX_LINE);
    char thing[64];
    int n = snprintf(thing, sizeof thing, "a line of %zu bytes", length);
    return wrong(r, thing, (size_t)n, expected);
  }
  if (memchr(at, 0, length)) return wrong(r, "a NUL byte", 10, "expected text in UTF-8");

  size_t end = 0; /* where a comment begins */
  while (end < length && (at[end] != '#' || (end > 0 && !is_space(at[end - 1])))) end++;
  piece whole = trimmed(at, at + end);
  if (whole.length == 0) return 0;
  char *equal = memchr(whole.at, '=', whole.length);
  if (!equal || equal == whole.at)
    return wrong(r, whole.at, whole.length, "expected key=value or opcode=handler_name");
  piece key = trimmed(whole.at, equal), value = trimmed(equal + 1, whole.at + whole.length);
  bool opcode = (key.at[0] >= '0' && key.at[0] <= '9') || key.at[0] == '-' || key.at[0] == '+';
  return opcode ? read_handler(r, whole, key, value) : read_key(r, whole, key, value);
}

/* --- the whole --------------------------------------------------------------------------------- */

int tp_config_parse(tp_config *c, const char *text, size_t length, const char *file) {
  *c = (tp_config){0};
  reader r = {.config = c, .file = file ? file : "config"};
  if (length > TP_CONFIG_MAX_BYTES) {
    const char *dots, *shown = shown_file(r.file, &dots);
    return tp_say(ERR_INVALID_ARGUMENT, "%s%s: more than 1 MiB: expected at most %d bytes", dots,
                  shown, TP_CONFIG_MAX_BYTES);
  }
  c->text = tp_alloc(length + 1);
  if (!c->text) return no_memory(r.file);
  if (length) memcpy(c->text, text, length);

  char *at = c->text, *end = c->text + length;
  if (length >= 3 && memcmp(at, "\xEF\xBB\xBF", 3) == 0) at += 3;
  int code = 0;
  while (at < end && code == 0) {
    char *newline = memchr(at, '\n', (size_t)(end - at)), *stop = newline ? newline : end;
    r.line++;
    code = read_line(&r, at, (size_t)(stop - at));
    at = stop + 1;
  }
  if (code) tp_config_free(c);
  return code;
}

int tp_config_read(tp_config *c, const char *path) {
  *c = (tp_config){0};
  if (!path) return tp_say(ERR_INVALID_ARGUMENT, "config file: NULL, expected a path");
  const char *dots, *shown = shown_file(path, &dots);
  size_t length = 0, room = TP_CONFIG_MAX_BYTES + 1; /* one more shows that it is too large */
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return tp_say(ERR_IO, "%s%s: cannot be opened: %s", dots, shown, strerror(errno));
  char *text = tp_map(room);
  if (!text) {
    close(fd);
    return no_memory(path);
  }
  int code = 0;
  while (code == 0 && length < room) {
    ssize_t n = read(fd, text + length, room - length);
    if (n == 0) break;
    if (n > 0)
      length += (size_t)n;
    else if (errno != EINTR)
      code = tp_say(ERR_IO, "%s%s: cannot be read: %s", dots, shown, strerror(errno));
  }
  close(fd);
  if (code == 0) code = tp_config_parse(c, text, length, path);
  tp_unmap(text, room);
  return code;
}

void tp_config_free(tp_config *c) {
  if (!c) return;
  for (size_t i = 0; i < c->plugin_count; i++) tp_free(c->plugins[i].path);
  tp_free(c->plugins);
  tp_free(c->handlers);
  tp_free(c->text);
  *c = (tp_config){0};
}
