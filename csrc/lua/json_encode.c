/* The encoder does not recurse: a level is a frame here and two slots of the Lua stack, the table and its current key.
 * So it fits small stacks, and where it is can be told from the keys. */
#include "lua/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <yyjson.h>

#include "base/assert.h"
#include "base/text.h"

enum kind {
  UNKNOWN, /* nothing seen yet */
  OBJECT,
  ARRAY, /* keys came as 1, 2, 3, ... so far */
  LISTED /* keys came in another order, but they are 1 to `total` */
};

typedef struct frame {
  const void *table;
  int count, total; /* members begun; of LISTED: all of them */
  enum kind kind;
} frame;

typedef struct encoder {
  lua_State *L;
  tp_bytes *out;
  const char *name;
  int base;  /* where the outermost table lies, absolute */
  int level; /* whose position messages begin with (luaL_where) */
  int depth;
  frame frames[TP_JSON_DEPTH];
} encoder;

/* --- messages */

enum { PATH = 240, COMPONENT = 64 };

static bool is_name(const char *s, size_t length) {
  for (size_t i = 0; i < length; i++) {
    unsigned char c = (unsigned char)s[i];
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!letter && !(i > 0 && c >= '0' && c <= '9')) return false;
  }
  return length > 0 && length < COMPONENT - 1;
}

/* Where the frame is: .name, ["any text"] or [3]; nothing if its key is no key of JSON. */
static void component(const encoder *e, int depth, char out[COMPONENT]) {
  const frame *f = &e->frames[depth];
  int key = e->base + 2 * depth + 1;
  int type = lua_type(e->L, key);
  *out = '\0';
  if (f->kind == LISTED) {
    snprintf(out, COMPONENT, "[%d]", f->count);
  } else if (type == LUA_TNUMBER) {
    snprintf(out, COMPONENT, "[%.14g]", lua_tonumber(e->L, key));
  } else if (type == LUA_TSTRING) {
    size_t length;
    const char *s = lua_tolstring(e->L, key, &length);
    if (is_name(s, length)) {
      snprintf(out, COMPONENT, ".%s", s);
    } else {
      char shown[COMPONENT - 4];
      snprintf(out, COMPONENT, "[\"%s\"]", tp_text_show(shown, sizeof shown, s, length));
    }
  }
}

/* From the value's name to the key of frame depth - 1. What is too long loses its head. */
static const char *path_of(const encoder *e, int depth, char out[PATH]) {
  size_t at = PATH - 1, name = e->name ? strlen(e->name) : 0;
  out[at] = '\0';
  while (depth-- > 0) {
    char piece[COMPONENT];
    component(e, depth, piece);
    size_t n = strlen(piece);
    if (n + 3 > at) {
      at -= 3;
      memcpy(out + at, "...", 3);
      return out + at;
    }
    at -= n;
    memcpy(out + at, piece, n);
  }
  if (name > 0 && name <= at) {
    at -= name;
    memcpy(out + at, e->name, name);
  }
  return out[at] == '.' ? out + at + 1 : out + at;
}

/* Raise an error about the value at the key of frame depth - 1; of depth 0, about the whole. */
__attribute__((format(printf, 3, 4), noreturn)) static void fail_at(encoder *e, int depth,
                                                                    const char *format, ...) {
  char message[160], path[PATH];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  const char *where = path_of(e, depth, path);
  luaL_where(e->L, e->level);
  lua_pushfstring(e->L, "%s%s%s%s", lua_tostring(e->L, -1), where, *where ? ": " : "", message);
  lua_error(e->L);
  __builtin_unreachable();
}
#define fail(e, ...) fail_at(e, (e)->depth, __VA_ARGS__)

/* --- strings */

#define EACH(c) ((uint64_t)0x0101010101010101 * (c))

/* Whether one of eight bytes is a control character, a quote, a backslash, or not ASCII. */
static inline bool is_special(uint64_t w) {
  uint64_t quote = w ^ EACH('"'), backslash = w ^ EACH('\\');
  uint64_t hit = (w - EACH(0x20)) | (quote - EACH(1)) | (backslash - EACH(1)) | w;
  return (hit & EACH(0x80)) != 0; /* of bytes below 0x80, a high bit means that one was borrowed */
}

/* How many bytes from the head can be written as they are. */
static size_t plain(const char *s, size_t length) {
  size_t at = 0;
  for (;;) {
    uint64_t w;
    while (length - at >= sizeof w && (memcpy(&w, s + at, sizeof w), !is_special(w)))
      at += sizeof w;
    if (at == length) return at;
    unsigned char c = (unsigned char)s[at];
    size_t bytes = 1;
    if (c >= 0x80)
      bytes = tp_text_character(s + at, length - at);
    else if (c < 0x20 || c == '"' || c == '\\')
      bytes = 0;
    if (bytes == 0) return at;
    at += bytes;
  }
}

static void escape(tp_bytes *out, unsigned char c) {
  static const char letters[0x20] = {
      ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
  static const char digits[] = "0123456789abcdef";
  char text[6] = {'\\', (char)c, '0', '0'};
  size_t n = 2;
  if (c >= 0x80) {
    memcpy(text, "\xEF\xBF\xBD", n = 3);
  } else if (c < 0x20 && letters[c]) {
    text[1] = letters[c];
  } else if (c < 0x20) {
    text[1] = 'u';
    text[4] = digits[c >> 4];
    text[5] = digits[c & 15];
    n = 6;
  }
  tp_bytes_put(out, text, n);
}

static void write_string(tp_bytes *out, const char *s, size_t length) {
  tp_bytes_char(out, '"');
  for (;;) {
    size_t n = plain(s, length);
    tp_bytes_put(out, s, n);
    if (n == length) break;
    escape(out, (unsigned char)s[n]);
    s += n + 1;
    length -= n + 1;
  }
  tp_bytes_char(out, '"');
}

/* --- numbers */

static void write_whole(tp_bytes *out, int64_t value) {
  char text[20];
  size_t at = sizeof text;
  uint64_t n = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do text[--at] = (char)('0' + n % 10);
  while (n /= 10);
  if (value < 0) text[--at] = '-';
  tp_bytes_put(out, text + at, sizeof text - at);
}

static void *real_get(void *text, size_t size) {
  (void)size;
  return text;
}
static void *real_resize(void *text, void *p, size_t old_size, size_t size) {
  (void)text, (void)old_size, (void)size;
  return p;
}
static void real_put(void *text, void *p) {
  (void)text, (void)p;
}

/* By yyjson: printf asks the locale for the decimal point, and would be tried with 15, 16 and 17 digits. */
static void write_real(tp_bytes *out, double d) {
  char text[64]; /* it asks for 32 */
  const yyjson_alc memory = {real_get, real_resize, real_put, text};
  const yyjson_val v = {.tag = YYJSON_TYPE_NUM | YYJSON_SUBTYPE_REAL, .uni.f64 = d};
  size_t n = 0;
  const char *written = yyjson_val_write_opts(&v, 0, &memory, &n, NULL);
  TP_ASSERT(n > 0 && n < 32, "a number fits");
  bool whole = n > 2 && memcmp(written + n - 2, ".0", 2) == 0;
  if (whole && d != 0) n -= 2; /* -0 would be read as the whole number */
  tp_bytes_put(out, written, n);
}

static void write_number(encoder *e, double d) {
  const double most = 9007199254740992.0; /* 2^53 */
  if (d >= -most && d <= most && d == (double)(int64_t)d && (d != 0 || !signbit(d)))
    write_whole(e->out, (int64_t)d);
  else if (isfinite(d))
    write_real(e->out, d);
  else
    fail(e, "%s cannot be written as JSON", isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
}

/* The C API does not tell a cdata's type: tostring gives 123LL or 123ULL. */
static void write_cdata(encoder *e) {
  lua_State *L = e->L;
  lua_getfield(L, LUA_REGISTRYINDEX, TP_JSON_INT64);
  lua_pushvalue(L, -2);
  if (lua_isnil(L, -2))
    lua_settop(L, -2);
  else
    lua_call(L, 1, 1);
  size_t length;
  const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tolstring(L, -1, &length) : NULL;
  if (!text) fail(e, "a cdata that is no int64_t or uint64_t cannot be written as JSON");
  while (length > 0 && (text[length - 1] == 'L' || text[length - 1] == 'U')) length--;
  tp_bytes_put(e->out, text, length);
  lua_settop(L, -2);
}

/* --- tables */

static void open_table(encoder *e) {
  const void *table = lua_topointer(e->L, -1);
  for (int d = e->depth - 1; d >= 0; d--)
    if (e->frames[d].table == table) fail(e, "a table within itself cannot be written as JSON");
  if (e->depth == TP_JSON_DEPTH) fail(e, "nested too deep: at most %d levels", TP_JSON_DEPTH);
  luaL_checkstack(e->L, 8, "JSON");
  e->frames[e->depth++] = (frame){.table = table, .kind = UNKNOWN};
  lua_pushnil(e->L); /* the key before the first */
}

static bool is_marked(lua_State *L, int table) {
  if (!lua_getmetatable(L, table)) return false;
  lua_getfield(L, LUA_REGISTRYINDEX, TP_JSON_ARRAY);
  bool marked = lua_rawequal(L, -1, -2);
  lua_settop(L, -3);
  return marked;
}

static void close_table(encoder *e, const frame *f) {
  if (f->count > 0)
    tp_bytes_char(e->out, f->kind == OBJECT ? '}' : ']');
  else
    tp_bytes_put(e->out, is_marked(e->L, -1) ? "[]" : "{}", 2);
  e->depth--;
  lua_settop(e->L, -2);
}

__attribute__((noreturn)) static void fail_key(encoder *e, const frame *f) {
  int type = lua_type(e->L, -2); /* below its value */
  if (type != LUA_TNUMBER && type != LUA_TSTRING)
    fail_at(e, e->depth - 1, "a key that is a %s cannot be written as JSON",
            lua_typename(e->L, type));
  if (type == LUA_TNUMBER && f->kind != OBJECT)
    fail(e, "no key of an array: these are 1 to n; an object has strings as keys");
  fail(e, "a %s as key beside %s: a table is written as an array (keys 1 to n) or as an object",
       type == LUA_TNUMBER ? "number" : "string", type == LUA_TNUMBER ? "strings" : "numbers");
}

/* Keys came in another order than 1, 2, 3, ...: look at all of them. Below the top: the table. */
static void check_list(encoder *e, frame *f) {
  lua_State *L = e->L;
  double most = 0;
  int total = 0;
  for (lua_pushnil(L); lua_next(L, -2); lua_settop(L, -2), total++) {
    double key = lua_type(L, -2) == LUA_TNUMBER ? lua_tonumber(L, -2) : 0;
    if (!(key >= 1) || key != floor(key)) fail_key(e, f);
    if (key > most) most = key;
  }
  f->total = total;
  if (most == total) return;
  int hole = 0, table = e->base + 2 * (e->depth - 1);
  do {
    lua_settop(L, table);
    lua_rawgeti(L, table, ++hole);
  } while (!lua_isnil(L, -1));
  fail_at(e, e->depth - 1, "element %d is nil, but there are later ones: write json.null there",
          hole);
}

/* The next member's value, onto the stack; false: none is left, and the key is gone. */
static bool next_value(encoder *e, frame *f) {
  lua_State *L = e->L;
  if (f->kind != LISTED) {
    if (!lua_next(L, -2)) return false;
    int type = lua_type(L, -2);
    if (type == LUA_TSTRING && f->kind <= OBJECT) {
      f->kind = OBJECT;
      return true;
    }
    if (f->kind == OBJECT) fail_key(e, f);
    f->kind = ARRAY;
    if (type == LUA_TNUMBER && lua_tonumber(L, -2) == f->count + 1) return true;
    lua_settop(L, -3);
    check_list(e, f);
    f->kind = LISTED;
    lua_pushnil(L); /* in place of the key */
  }
  if (f->count == f->total) {
    lua_settop(L, -2);
    return false;
  }
  lua_rawgeti(L, -2, f->count + 1);
  return true;
}

/* --- values */

/* The value on top is written and popped, or a table and opened. */
static void write_value(encoder *e) {
  lua_State *L = e->L;
  size_t length;
  int type = lua_type(L, -1);
  switch (type) {
  case LUA_TTABLE: open_table(e); return;
  case LUA_TSTRING: {
    const char *s = lua_tolstring(L, -1, &length);
    write_string(e->out, s, length);
    break;
  }
  case LUA_TNUMBER: write_number(e, lua_tonumber(L, -1)); break;
  case LUA_TBOOLEAN:
    if (lua_toboolean(L, -1))
      tp_bytes_put(e->out, "true", 4);
    else
      tp_bytes_put(e->out, "false", 5);
    break;
  case LUA_TCDATA: write_cdata(e); break;
  case LUA_TLIGHTUSERDATA:
    if (lua_touserdata(L, -1)) fail(e, "a lightuserdata cannot be written as JSON");
    tp_bytes_put(e->out, "null", 4);
    break;
  case LUA_TNIL: tp_bytes_put(e->out, "null", 4); break;
  default: fail(e, "a %s cannot be written as JSON", lua_typename(L, type));
  }
  lua_settop(L, -2);
}

/* The next member of the innermost table, or its end. */
static void step(encoder *e) {
  frame *f = &e->frames[e->depth - 1];
  if (!next_value(e, f)) {
    close_table(e, f);
    return;
  }
  bool object = f->kind == OBJECT;
  tp_bytes_char(e->out, f->count++ ? ',' : object ? '{' : '[');
  if (object) {
    size_t length;
    const char *key = lua_tolstring(e->L, -2, &length);
    write_string(e->out, key, length);
    tp_bytes_char(e->out, ':');
  }
  write_value(e);
}

/* The value on top, which goes. */
static void encode(lua_State *L, const char *name, tp_bytes *out, int level) {
  encoder e; /* the frames are written when they are opened */
  e.L = L;
  e.out = out;
  e.name = name;
  e.base = lua_gettop(L);
  e.level = level;
  e.depth = 0;
  write_value(&e);
  while (e.depth > 0 && !out->failed) step(&e);
  if (out->failed) fail_at(&e, 0, "out of memory for the JSON text");
}

void tp_json_encode(lua_State *L, int index, const char *name, tp_bytes *out) {
  luaL_checkstack(L, 8, "JSON");
  lua_pushvalue(L, index);
  encode(L, name, out, 1);
}

/* --- the function for Lua */

/* (out, value) -> text. Protected, so that the text is freed whatever is raised. */
int tp_lua_json_encode_body(lua_State *L) {
  tp_bytes *out = lua_touserdata(L, 1);
  encode(L, NULL, out, 2); /* 1 is tp_lua_json_encode */
  lua_pushlstring(L, out->data, out->size);
  return 1;
}

int tp_lua_json_encode(lua_State *L) {
  tp_bytes out = {0}; /* of its own: finalizers, which may run now, encode too */
  if (lua_gettop(L) == 0) luaL_argerror(L, 1, "value expected");
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_pushlightuserdata(L, &out);
  lua_insert(L, 2);
  int status = lua_pcall(L, 2, 1, 0);
  tp_bytes_free(&out);
  return status == LUA_OK ? 1 : lua_error(L);
}
