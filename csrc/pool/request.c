#include "pool/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

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

static int wrong(int m, yyjson_val *v) {
  return tp_say(ERR_INVALID_JSON, "member \"%s\": expected %s, got %s", names[m], expectations[m],
                yyjson_get_type_desc(v));
}

/* Brackets outside of strings; a text that is no JSON is told by the parser. */
static bool too_deep(const char *text, size_t length, uint32_t most) {
  uint32_t depth = 0;
  for (size_t i = 0; i < length; i++) {
    switch (text[i]) {
    case '"':
      while (++i < length && text[i] != '"')
        if (text[i] == '\\') i++;
      break;
    case '{':
    case '[':
      if (++depth > most) return true;
      break;
    case '}':
    case ']':
      if (depth > 0) depth--;
      break;
    }
  }
  return false;
}

static bool whole(yyjson_val *v, uint64_t most, uint64_t *out) {
  if (!yyjson_is_uint(v) || yyjson_get_uint(v) > most) return false;
  *out = yyjson_get_uint(v);
  return true;
}

static bool digits(const char *text, size_t length, uint64_t *out) {
  uint64_t n = 0;
  if (length == 0) return false;
  for (size_t i = 0; i < length; i++) {
    unsigned digit = (unsigned char)text[i] - '0';
    if (digit > 9 || n > (UINT64_MAX - digit) / 10) return false;
    n = n * 10 + digit;
  }
  *out = n;
  return true;
}

static int unknown_op(const tp_ops *ops, uint64_t opcode, yyjson_val *name) {
  (void)ops;
  if (name)
    return tp_say(ERR_UNKNOWN_OPCODE, "unknown operation: \"%.100s\"", yyjson_get_str(name));
  return tp_say(ERR_UNKNOWN_OPCODE, "unknown opcode: %llu", (unsigned long long)opcode);
}

static int find_op(tp_request *r, const tp_ops *ops, yyjson_val *opcode, yyjson_val *name) {
  uint64_t code = opcode ? yyjson_get_uint(opcode) : 0;
  const tp_op *by_code = opcode ? tp_ops_by_code(ops, code) : NULL;
  const tp_op *by_name =
      name ? tp_ops_by_name(ops, yyjson_get_str(name), yyjson_get_len(name)) : NULL;
  if (!opcode && !name)
    return tp_say(ERR_INVALID_JSON, "no operation: expected a member \"opcode\" or \"op\"");
  if (opcode && !by_code) return unknown_op(ops, code, NULL);
  if (name && !by_name) return unknown_op(ops, 0, name);
  if (by_code && by_name && by_code != by_name)
    return tp_say(ERR_INVALID_JSON, "opcode %llu is %s, but \"op\" says %s: give one of them",
                  (unsigned long long)code, by_code->name, by_name->name);
  r->op = by_code ? by_code : by_name;
  if (r->op->missing) return tp_say(ERR_UNKNOWN_OPCODE, "%s: %s", r->op->name, r->op->missing);
  return 0;
}

int tp_request_decode(tp_request *r, const tp_ops *ops, const tp_calls_options *limits, char *text,
                      size_t length) {
  *r = (tp_request){.priority = THREADPOOL_NORMAL};
  if (length > limits->max_request_bytes)
    return tp_say(ERR_INVALID_JSON,
                  "the request has %zu bytes: expected at most %u (max_request_bytes)", length,
                  limits->max_request_bytes);
  if (length > limits->max_depth && too_deep(text, length, limits->max_depth))
    return tp_say(ERR_INVALID_JSON, "nested too deep: expected at most %u levels (max_depth)",
                  limits->max_depth);
  yyjson_read_err error;
  r->doc = yyjson_read_opts(text, length, YYJSON_READ_INSITU, NULL, &error);
  if (!r->doc) {
    if (error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
      return tp_say(ERR_MALLOC_FAILED, "out of memory for a request of %zu bytes", length);
    return tp_say(ERR_INVALID_JSON, "not JSON: %s at byte %zu", error.msg, error.pos);
  }
  yyjson_val *root = yyjson_doc_get_root(r->doc);
  if (!yyjson_is_obj(root))
    return tp_say(ERR_INVALID_JSON, "expected an object, got %s", yyjson_get_type_desc(root));

  yyjson_val *member[M_COUNT] = {NULL};
  size_t i, n;
  yyjson_val *key, *value;
  yyjson_obj_foreach(root, i, n, key, value) {
    int m = 0;
    while (m < M_COUNT && !yyjson_equals_str(key, names[m])) m++;
    if (m == M_COUNT)
      return tp_say(ERR_INVALID_JSON,
                    "unknown member \"%.100s\": expected opcode, op, args, task_id, priority, "
                    "timeout_ms or tag",
                    yyjson_get_str(key));
    if (member[m]) return tp_say(ERR_INVALID_JSON, "member \"%s\" is given twice", names[m]);
    member[m] = value;
  }
  yyjson_val *v = member[M_task_id]; /* first: errors carry it too */
  if (v && !whole(v, UINT64_MAX, &r->outer_id) &&
      !(yyjson_is_str(v) && digits(yyjson_get_str(v), yyjson_get_len(v), &r->outer_id)))
    return wrong(M_task_id, v);
  uint64_t code;
  if ((v = member[M_opcode]) && !whole(v, TP_OPCODE_MOST, &code)) return wrong(M_opcode, v);
  if ((v = member[M_op]) && !yyjson_is_str(v)) return wrong(M_op, v);
  if ((v = member[M_args]) && !yyjson_is_obj(v)) return wrong(M_args, v);
  if ((v = member[M_tag]) && !yyjson_is_str(v)) return wrong(M_tag, v);
  if ((v = member[M_timeout_ms]) && !whole(v, UINT32_MAX, &r->timeout_ms))
    return wrong(M_timeout_ms, v);
  if ((v = member[M_priority])) {
    if (yyjson_equals_str(v, "high"))
      r->priority = THREADPOOL_HIGH;
    else if (yyjson_equals_str(v, "low"))
      r->priority = THREADPOOL_LOW;
    else if (!yyjson_equals_str(v, "normal"))
      return wrong(M_priority, v);
  }
  r->args = member[M_args];
  return find_op(r, ops, member[M_opcode], member[M_op]);
}
