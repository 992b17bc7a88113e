#include "pool/request.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

/* X(name, what is expected) */
#define MEMBERS(X)                                                                                 \
  X(opcode, "a whole number from 0 to 65535")                                                      \
  X(op, "the name of an operation, a string")                                                      \
  X(args, "an object")                                                                             \
  X(task_id, "a whole number from 0 to 18446744073709551615, or a string of its digits")           \
  X(priority, "\"high\", \"normal\" or \"low\"")                                                   \
  X(timeout_ms, "a whole number from 0 to 4294967295")                                             \
  X(tag, "a string")

enum {
#define ENUM(name, expected) M_##name,
  MEMBERS(ENUM)
#undef ENUM
      M_COUNT
};
static const char *const names[M_COUNT] = {
#define NAME(name, expected) #name,
    MEMBERS(NAME)
#undef NAME
};
static const char *const expectations[M_COUNT] = {
#define EXPECTED(name, expected) expected,
    MEMBERS(EXPECTED)
#undef EXPECTED
};

/* --- memory */

static void *json_malloc(void *arena, size_t size) {
  return tp_arena_get(arena, size);
}
static void *json_realloc(void *arena, void *p, size_t old_size, size_t size) {
  return tp_arena_resize(arena, p, old_size, size);
}
static void json_free(void *arena, void *p) {
  tp_arena_put(arena, p);
}
yyjson_alc tp_json_memory(tp_arena *arena) {
  return (yyjson_alc){json_malloc, json_realloc, json_free, arena};
}

/* --- messages */

enum {
  SHOWN = 60
}; /* bytes of a member's name or text: a message has room in a result's error_msg */

typedef struct shown {
  char text[SHOWN + 3];
} shown;

static shown quote(const char *text, size_t length) {
  shown s = {"\""};
  tp_text_show(s.text + 1, SHOWN, text, length);
  memcpy(strchr(s.text, '\0'), "\"", 2);
  return s;
}

/* As it stands in the request, but for what has members. */
static shown value_of(yyjson_val *v) {
  shown s = {""};
  if (yyjson_is_str(v)) return quote(yyjson_get_str(v), yyjson_get_len(v));
  if (yyjson_is_uint(v))
    snprintf(s.text, sizeof s.text, "%llu", (unsigned long long)yyjson_get_uint(v));
  else if (yyjson_is_sint(v))
    snprintf(s.text, sizeof s.text, "%lld", (long long)yyjson_get_sint(v));
  else if (yyjson_is_real(v))
    snprintf(s.text, sizeof s.text, "%.15g", yyjson_get_real(v));
  else
    snprintf(s.text, sizeof s.text, "%s", yyjson_get_type_desc(v)); /* null, true, array, ... */
  return s;
}

static int wrong(int m, yyjson_val *v) {
  return tp_say(ERR_INVALID_JSON, "member \"%s\": expected %s, got %s", names[m], expectations[m],
                value_of(v).text);
}

/* --- members */

/* M_COUNT: none of that name. No two have the same length. */
static int member_of(yyjson_val *key) {
  int m;
  switch (yyjson_get_len(key)) {
#define LENGTH(name, expected)                                                                     \
  case sizeof #name - 1: m = M_##name; break;
    MEMBERS(LENGTH)
#undef LENGTH
  default: return M_COUNT;
  }
  return memcmp(yyjson_get_str(key), names[m], yyjson_get_len(key)) == 0 ? m : M_COUNT;
}

static bool whole(yyjson_val *v, uint64_t most, uint64_t *out) {
  if (!yyjson_is_uint(v) || yyjson_get_uint(v) > most) return false;
  *out = yyjson_get_uint(v);
  return true;
}

static bool digits(const char *text, size_t length, uint64_t *out) {
  uint64_t n = 0;
  if (length == 0 || (length > 1 && text[0] == '0')) return false; /* as a JSON number */
  for (size_t i = 0; i < length; i++) {
    unsigned digit = (unsigned char)text[i] - '0';
    if (digit > 9 || n > (UINT64_MAX - digit) / 10) return false;
    n = n * 10 + digit;
  }
  *out = n;
  return true;
}

/* What may be meant: the name without handler_, as config files have it, in small letters and with _ for -. */
static const tp_op *similar(const tp_ops *ops, const char *name, size_t length) {
  char other[TP_OP_NAME_MOST];
  static const char prefix[] = "handler_";
  if (length >= sizeof prefix && memcmp(name, prefix, sizeof prefix - 1) == 0) {
    name += sizeof prefix - 1;
    length -= sizeof prefix - 1;
  }
  if (length > sizeof other) return NULL;
  for (size_t i = 0; i < length; i++) {
    char c = name[i];
    other[i] = c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c == '-' ? '_' : c;
  }
  return tp_ops_by_name(ops, other, length);
}

#define KNOWN "known are those of config/config and what threadpool_register has added"

static int unknown_op(const tp_ops *ops, yyjson_val *name) {
  const char *text = yyjson_get_str(name);
  size_t length = yyjson_get_len(name);
  const tp_op *op = similar(ops, text, length);
  if (op)
    return tp_say(ERR_UNKNOWN_OPCODE, "unknown operation: %s: is \"%s\" meant?",
                  quote(text, length).text, op->name);
  return tp_say(ERR_UNKNOWN_OPCODE, "unknown operation: %s: " KNOWN, quote(text, length).text);
}

static int find_op(tp_request *r, const tp_ops *ops, yyjson_val *opcode, yyjson_val *name) {
  uint64_t code = opcode ? yyjson_get_uint(opcode) : 0;
  const tp_op *by_code = opcode ? tp_ops_by_code(ops, code) : NULL;
  const tp_op *by_name =
      name ? tp_ops_by_name(ops, yyjson_get_str(name), yyjson_get_len(name)) : NULL;
  if (!opcode && !name)
    return tp_say(ERR_INVALID_JSON, "no operation: expected a member \"opcode\" or \"op\"");
  if (opcode && !by_code)
    return tp_say(ERR_UNKNOWN_OPCODE, "unknown opcode: %llu: " KNOWN, (unsigned long long)code);
  if (name && !by_name) return unknown_op(ops, name);
  if (by_code && by_name && strcmp(by_code->name, by_name->name) != 0)
    return tp_say(ERR_INVALID_JSON, "opcode %llu is %s, but \"op\" says %s: give one of them",
                  (unsigned long long)code, by_code->name, by_name->name);
  r->op = by_code ? by_code : by_name;
  if (r->op->missing) return tp_say(ERR_UNKNOWN_OPCODE, "%s: %s", r->op->name, r->op->missing);
  return 0;
}

/* --- the text */

/* Values lie one after another, those of a container behind it, and it knows its end. The parser does not recurse, so
 * this can wait until there is something to walk along; few requests have so many values that they must be. */
static int check_depth(yyjson_doc *doc, uint32_t most) {
  size_t count = yyjson_doc_get_val_count(doc);
  if (tp_likely(count <= most)) return 0;
  yyjson_val **ends = tp_get(most * sizeof(void *));
  if (!ends) return tp_say(ERR_MALLOC_FAILED, "out of memory for a request of %zu values", count);
  uint32_t depth = 0;
  int error = 0;
  yyjson_val *v = yyjson_doc_get_root(doc);
  for (yyjson_val *end = v + count; v < end && !error; v++) {
    if (!yyjson_is_ctn(v)) continue;
    while (depth > 0 && v >= ends[depth - 1]) depth--;
    if (depth < most)
      ends[depth++] = unsafe_yyjson_get_next(v);
    else
      error =
          tp_say(ERR_INVALID_JSON, "nested too deep: expected at most %u levels (max_depth)", most);
  }
  tp_put(ends);
  return error;
}

int tp_request_decode(tp_request *r, const tp_ops *ops, const tp_calls_options *limits,
                      tp_arena *arena, char *text, size_t length) {
  *r = (tp_request){.priority = TP_NORMAL};
  if (length > limits->max_request_bytes)
    return tp_say(ERR_INVALID_JSON,
                  "the request has %zu bytes: expected at most %u (max_request_bytes)", length,
                  limits->max_request_bytes);
  yyjson_read_err error;
  const yyjson_alc memory = tp_json_memory(arena);
  r->doc = yyjson_read_opts(text, length, YYJSON_READ_INSITU, &memory, &error);
  if (!r->doc) {
    if (error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
      return tp_say(ERR_MALLOC_FAILED, "out of memory for a request of %zu bytes", length);
    return tp_say(ERR_INVALID_JSON, "not JSON: %s at byte %zu", error.msg, error.pos);
  }
  int deep = check_depth(r->doc, limits->max_depth);
  if (deep) return deep;
  yyjson_val *root = yyjson_doc_get_root(r->doc);
  if (!yyjson_is_obj(root))
    return tp_say(ERR_INVALID_JSON, "expected an object, got %s", yyjson_get_type_desc(root));

  yyjson_val *member[M_COUNT] = {NULL};
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_val *v = yyjson_obj_get(root, "task_id"); /* first: errors carry it too */
  if (v && !whole(v, UINT64_MAX, &r->outer_id) &&
      !(yyjson_is_str(v) && digits(yyjson_get_str(v), yyjson_get_len(v), &r->outer_id)))
    return wrong(M_task_id, v);
  yyjson_obj_foreach(root, i, n, key, value) {
    int m = member_of(key);
    if (m == M_COUNT)
      return tp_say(ERR_INVALID_JSON,
                    "unknown member %s: expected opcode, op, args, task_id, priority, "
                    "timeout_ms or tag",
                    quote(yyjson_get_str(key), yyjson_get_len(key)).text);
    if (member[m]) return tp_say(ERR_INVALID_JSON, "member \"%s\" is given twice", names[m]);
    member[m] = value;
  }
  uint64_t code;
  if ((v = member[M_opcode]) && !whole(v, TP_OPCODE_MOST, &code)) return wrong(M_opcode, v);
  if ((v = member[M_op]) && !yyjson_is_str(v)) return wrong(M_op, v);
  if ((v = member[M_args]) && !yyjson_is_obj(v)) return wrong(M_args, v);
  if ((v = member[M_tag]) && !yyjson_is_str(v)) return wrong(M_tag, v);
  if ((v = member[M_timeout_ms]) && !whole(v, UINT32_MAX, &r->timeout_ms))
    return wrong(M_timeout_ms, v);
  if ((v = member[M_priority])) {
    if (yyjson_equals_str(v, "high"))
      r->priority = TP_HIGH;
    else if (yyjson_equals_str(v, "low"))
      r->priority = TP_LOW;
    else if (!yyjson_equals_str(v, "normal"))
      return wrong(M_priority, v);
  }
  r->args = member[M_args];
  return find_op(r, ops, member[M_opcode], member[M_op]);
}
