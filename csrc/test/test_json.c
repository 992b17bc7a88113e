/* test_json.c - which texts are JSON: a list in the manner of JSONTestSuite, each text as a whole request and as a value in
 * the arguments of an echo, given with its length; and texts that are deep or large. */
#include <stdio.h>

#include "base/text.h"
#include "help.h"

typedef struct text {
  const char *name, *json;
  size_t length;
  const char *printed; /* by echo; NULL: it is not JSON */
} text;

#define YES(name, json, printed)                                                                   \
  { #name, json, sizeof(json) - 1, printed }
#define NO(name, json)                                                                             \
  { #name, json, sizeof(json) - 1, NULL }

static const text texts[] = {
    YES(array_empty, "[]", "[]"),
    YES(array_spaces,
        "[ 1 , 2\x09,\x0a"
        "3\x0d]",
        "[1,2,3]"),
    YES(array_nested, "[[],[[]],{}]", "[[],[[]],{}]"),
    YES(array_mixed, "[null,true,false,1,\"a\",{}]", "[null,true,false,1,\"a\",{}]"),
    YES(array_leading_space, " [1]", "[1]"),
    YES(array_trailing_space, "[1] ", "[1]"),
    YES(array_of_null, "[null]", "[null]"),
    YES(array_line_ends,
        "[\x0d\x0a"
        "1\x0d\x0a]",
        "[1]"),
    YES(object_empty, "{}", "{}"),
    YES(object_spaces, " { \"a\" : 1 , \"b\" : 2 } ", "{\"a\":1,\"b\":2}"),
    YES(object_key_empty, "{\"\":0}", "{\"\":0}"),
    YES(object_key_twice, "{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"),
    YES(object_key_escaped, "{\"\\u0061\":1}", "{\"a\":1}"),
    YES(object_key_nul, "{\"a\\u0000b\":1}", "{\"a\\u0000b\":1}"),
    YES(object_long_key,
        "{\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
        "kkkkkkkkkkkkk\":1}",
        "{\"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"
        "kkkkkkkkkkkkk\":1}"),
    YES(object_nested, "{\"a\":{\"b\":{\"c\":[]}}}", "{\"a\":{\"b\":{\"c\":[]}}}"),
    YES(null, "null", "null"),
    YES(true, "true", "true"),
    YES(false, "false", "false"),
    YES(lonely_spaces, "\x0a\x09\x0d 1 \x0a\x09\x0d", "1"),
    YES(number_0, "0", "0"),
    YES(number_minus_1, "-1", "-1"),
    YES(number_minus_0_real, "-0.0", "-0.0"),
    YES(number_0_exponent, "0e1", "0.0"),
    YES(number_0_exponent_plus, "0e+1", "0.0"),
    YES(number_exponent, "1e2", "100.0"),
    YES(number_exponent_upper, "1E2", "100.0"),
    YES(number_exponent_minus, "1E-2", "0.01"),
    YES(number_exponent_plus, "1E+2", "100.0"),
    YES(number_real, "123.456", "123.456"),
    YES(number_real_exponent, "12.5e-1", "1.25"),
    YES(number_real_zeros, "1.500", "1.5"),
    YES(number_int64_most, "9223372036854775807", "9223372036854775807"),
    YES(number_int64_least, "-9223372036854775808", "-9223372036854775808"),
    YES(number_uint64_most, "18446744073709551615", "18446744073709551615"),
    YES(number_2_53, "9007199254740993", "9007199254740993"),
    YES(number_double_most, "1.7976931348623157e308", "1.7976931348623157e308"),
    YES(number_double_least, "5e-324", "5e-324"),
    YES(number_17_digits, "0.10000000000000001", "0.1"),
    YES(number_exponent_zeros, "1e0000002", "100.0"),
    YES(string_empty, "\"\"", "\"\""),
    YES(string_simple, "\"abc\"", "\"abc\""),
    YES(string_escapes, "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\""),
    YES(string_u0000, "\"\\u0000\"", "\"\\u0000\""),
    YES(string_u001f, "\"\\u001f\"", "\"\\u001F\""),
    YES(string_u0022, "\"\\u0022\"", "\"\\\"\""),
    YES(string_u005c, "\"\\u005C\"", "\"\\\\\""),
    YES(string_delete, "\"\x7f\"", "\"\x7f\""),
    YES(string_utf8_2, "\"\xc3\xbc\"", "\"\xc3\xbc\""),
    YES(string_utf8_3, "\"\xe2\x82\xac\"", "\"\xe2\x82\xac\""),
    YES(string_utf8_4, "\"\xf0\x9f\x98\x80\"", "\"\xf0\x9f\x98\x80\""),
    YES(string_escaped_2, "\"\\u00fc\"", "\"\xc3\xbc\""),
    YES(string_escaped_3, "\"\\u20AC\"", "\"\xe2\x82\xac\""),
    YES(string_pair, "\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\""),
    YES(string_pair_upper, "\"\\uD83D\\uDE00\"", "\"\xf0\x9f\x98\x80\""),
    YES(string_last_pair, "\"\\uDBFF\\uDFFF\"", "\"\xf4\x8f\xbf\xbf\""),
    YES(string_noncharacter, "\"\xef\xbf\xbf\"", "\"\xef\xbf\xbf\""),
    YES(string_noncharacter_escaped, "\"\\uFFFE\"", "\"\xef\xbf\xbe\""),
    YES(string_u2028, "\"\xe2\x80\xa8\xe2\x80\xa9\"", "\"\xe2\x80\xa8\xe2\x80\xa9\""),
    YES(string_bom_inside, "\"\xef\xbb\xbf\"", "\"\xef\xbb\xbf\""),
    YES(string_first_3, "\"\xe0\xa0\x80\"", "\"\xe0\xa0\x80\""),
    YES(string_before_surrogates, "\"\xed\x9f\xbf\"", "\"\xed\x9f\xbf\""),
    YES(string_after_surrogates, "\"\xee\x80\x80\"", "\"\xee\x80\x80\""),
    YES(string_first_4, "\"\xf0\x90\x80\x80\"", "\"\xf0\x90\x80\x80\""),
    YES(string_comment, "\"/* a */ // b\"", "\"/* a */ // b\""),
    YES(string_brackets, "\"[[[{{{\"", "\"[[[{{{\""),
    YES(string_escaped_backslash_u, "\"\\\\u0041\"", "\"\\\\u0041\""),
    YES(string_c1, "\"\\u0085\"", "\"\xc2\x85\""),
    YES(string_spaces, "\" a \"", "\" a \""),

    NO(empty, ""),
    NO(space, " "),
    NO(array_open, "["),
    NO(array_open_1, "[1"),
    NO(array_open_comma, "[1,"),
    NO(array_close, "]"),
    NO(array_comma_only, "[,]"),
    NO(array_comma_first, "[,1]"),
    NO(array_comma_last, "[1,]"),
    NO(array_comma_twice, "[1,,2]"),
    NO(array_no_comma, "[1 2]"),
    NO(array_colon, "[1:2]"),
    NO(array_wrong_close, "[1}"),
    NO(array_extra_close, "[1]]"),
    NO(array_in_parens, "(1)"),
    NO(array_semicolon, "[1;2]"),
    NO(array_just_minus, "[-]"),
    NO(array_star, "[*]"),
    NO(object_open, "{"),
    NO(object_open_key, "{\"a\""),
    NO(object_open_colon, "{\"a\":"),
    NO(object_open_value, "{\"a\":1"),
    NO(object_open_comma, "{\"a\":1,"),
    NO(object_comma_last, "{\"a\":1,}"),
    NO(object_comma_first, "{,\"a\":1}"),
    NO(object_comma_only, "{,}"),
    NO(object_comma_twice, "{\"a\":1,,\"b\":2}"),
    NO(object_no_colon, "{\"a\" 1}"),
    NO(object_two_colons, "{\"a\"::1}"),
    NO(object_no_value, "{\"a\":}"),
    NO(object_no_key, "{:1}"),
    NO(object_bare_key, "{a:1}"),
    NO(object_single_quotes, "{'a':1}"),
    NO(object_number_key, "{1:1}"),
    NO(object_null_key, "{null:1}"),
    NO(object_wrong_close, "{\"a\":1]"),
    NO(object_extra_close, "{}}"),
    NO(object_equals, "{\"a\"=1}"),
    NO(object_array_key, "{[1]:1}"),
    NO(object_key_only, "{\"a\"}"),
    NO(object_semicolon, "{\"a\":1;\"b\":2}"),
    NO(literal_True, "True"),
    NO(literal_nul, "nul"),
    NO(literal_nulll, "nulll"),
    NO(literal_truefalse, "truefalse"),
    NO(literal_undefined, "undefined"),
    NO(literal_a, "a"),
    NO(literal_NULL, "NULL"),
    NO(number_plus, "+1"),
    NO(number_leading_zero, "01"),
    NO(number_minus_leading_zero, "-01"),
    NO(number_point_first, ".5"),
    NO(number_point_last, "1."),
    NO(number_minus_point, "-.5"),
    NO(number_exponent_empty, "1e"),
    NO(number_exponent_sign, "1e+"),
    NO(number_exponent_point, "1.e1"),
    NO(number_two_points, "1.2.3"),
    NO(number_two_exponents, "1e2e3"),
    NO(number_hex, "0x1F"),
    NO(number_octal, "0o7"),
    NO(number_NaN, "NaN"),
    NO(number_nan, "nan"),
    NO(number_Infinity, "Infinity"),
    NO(number_minus_Infinity, "-Infinity"),
    NO(number_inf, "inf"),
    NO(number_minus, "-"),
    NO(number_minus_space, "- 1"),
    NO(number_two_minus, "--1"),
    NO(number_underscore, "1_000"),
    NO(number_letter, "1a"),
    NO(number_comma, "1,5 "),
    NO(number_fullwidth, "\xef\xbc\x91"),
    NO(number_real_exponent_real, "1e1.5"),
    NO(number_suffix, "1.5f"),
    NO(number_space_inside, "1 000"),
    NO(number_exponent_letter, "1ex"),
    NO(string_open, "\""),
    NO(string_open_text, "\"abc"),
    NO(string_bare, "abc"),
    NO(string_single, "'abc'"),
    NO(string_escape_open, "\"\\"),
    NO(string_escape_x, "\"\\x41\""),
    NO(string_escape_a, "\"\\a\""),
    NO(string_escape_0, "\"\\0\""),
    NO(string_escape_single, "\"\\'\""),
    NO(string_escape_U, "\"\\U0041\""),
    NO(string_escape_space, "\"\\ \""),
    NO(string_u_short, "\"\\u004\""),
    NO(string_u_empty, "\"\\u\""),
    NO(string_u_letter, "\"\\u00g0\""),
    NO(string_u_brace, "\"\\u{41}\""),
    NO(string_tab, "\"a\x09"
                   "b\""),
    NO(string_line_feed, "\"a\x0a"
                         "b\""),
    NO(string_return, "\"a\x0d"
                      "b\""),
    NO(string_nul, "\"a\x00"
                   "b\""),
    NO(string_escape_control, "\"\x1b[0m\""),
    NO(string_u001f_raw, "\"\x1f\""),
    NO(string_two, "\"a\" \"b\""),
    NO(string_backtick, "`a`"),
    NO(string_escaped_newline, "\"a\\\x0a"
                               "b\""),
    NO(after_number, "1 2"),
    NO(after_object, "{} {}"),
    NO(after_comma, "{},"),
    NO(after_hash, "{} #"),
    NO(comment_line, "1 // a\x0a"),
    NO(comment_block, "/* a */ 1"),
    NO(comment_open, "1 /*"),
    NO(comment_hash, "# a\x0a"
                     "1"),
    NO(space_form_feed, "\x0c"
                        "1"),
    NO(space_vertical, "\x0b"
                       "1"),
    NO(space_no_break, "\xc2\xa0"
                       "1"),
    NO(space_line_separator, "\xe2\x80\xa8"
                             "1"),
    NO(space_word_joiner, "\xe2\x81\xa0"
                          "1"),
    NO(nul_only, "\x00"),
    NO(nul_before, "\x00"
                   "1"),
    NO(nul_after, "1\x00"),
    NO(nul_in_array, "[1\x00]"),
    NO(angle, "<1>"),
    NO(at, "@"),
    NO(ampersand, "&a"),

    /* Where parsers differ: what this one does. */
    NO(utf8_bom, "\xef\xbb\xbf"
                 "1"),
    NO(utf8_bom_only, "\xef\xbb\xbf"),
    NO(utf16_le_bom, "\xff\xfe"
                     "1\x00"),
    NO(utf16_be, "\xfe\xff\x00"
                 "1"),
    NO(utf32_le, "1\x00\x00\x00"),
    NO(utf8_lone_continuation, "\"\x80\""),
    NO(utf8_lone_continuation_bf, "\"\xbf\""),
    NO(utf8_head_only_2, "\"\xc3\""),
    NO(utf8_head_only_3, "\"\xe2\x82\""),
    NO(utf8_head_only_4, "\"\xf0\x9f\x98\""),
    NO(utf8_cut_at_end, "\"\xe2\x82"),
    NO(utf8_overlong_2, "\"\xc0\xaf\""),
    NO(utf8_overlong_2_c1, "\"\xc1\xbf\""),
    NO(utf8_overlong_3, "\"\xe0\x80\xaf\""),
    NO(utf8_overlong_4, "\"\xf0\x80\x80\xaf\""),
    NO(utf8_overlong_nul, "\"\xc0\x80\""),
    NO(utf8_surrogate, "\"\xed\xa0\x80\""),
    NO(utf8_surrogate_low, "\"\xed\xbf\xbf\""),
    NO(utf8_surrogate_pair, "\"\xed\xa0\xbd\xed\xb8\x80\""),
    NO(utf8_above, "\"\xf4\x90\x80\x80\""),
    NO(utf8_f5, "\"\xf5\x80\x80\x80\""),
    NO(utf8_5_bytes, "\"\xf8\x88\x80\x80\x80\""),
    NO(utf8_6_bytes, "\"\xfc\x84\x80\x80\x80\x80\""),
    NO(utf8_fe, "\"\xfe\""),
    NO(utf8_ff, "\"\xff\""),
    NO(utf8_in_key, "{\"\xff\":1}"),
    NO(utf8_outside, "\xe4"),
    NO(latin1, "\"\xe4\xf6\xfc\""),
    NO(surrogate_high_only, "\"\\ud800\""),
    NO(surrogate_low_only, "\"\\udc00\""),
    NO(surrogate_swapped, "\"\\udc00\\ud800\""),
    NO(surrogate_two_high, "\"\\ud800\\ud800\""),
    NO(surrogate_then_text, "\"\\ud800abc\""),
    NO(surrogate_then_escape, "\"\\ud800\\n\""),
    NO(surrogate_short, "\"\\ud800\\udc0\""),
    YES(number_minus_0, "-0", "0"),
    YES(number_above_uint64, "18446744073709551616", "18446744073709552000.0"),
    YES(number_below_int64, "-9223372036854775809", "-9223372036854776000.0"),
    YES(number_30_digits, "123456789012345678901234567890", "1.2345678901234568e29"),
    NO(number_1e400, "1e400"),
    NO(number_minus_1e400, "-1e400"),
    NO(number_1e99999999999, "1e99999999999"),
    YES(number_1e_minus_400, "1e-400", "0.0"),
    YES(number_1e_minus_99999999999, "1e-99999999999", "0.0"),
    NO(number_400_digits,
       "1111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111"
       "1111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111"
       "1111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111"
       "1111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111"
       "111111111111111111111111111111111111"),
    YES(number_400_decimals,
        "0."
        "333333333333333333333333333333333333333333333333333333333333333333333333333333333333333333"
        "333333333333333333333333333333333333333333333333333333333333333333333333333333333333333333"
        "333333333333333333333333333333333333333333333333333333333333333333333333333333333333333333"
        "333333333333333333333333333333333333333333333333333333333333333333333333333333333333333333"
        "3333333333333333333333333333333333333333",
        "0.3333333333333333"),
};
enum { TEXTS = sizeof texts / sizeof *texts };

static threadpool_t *pool;

static bool printable(const char *s) {
  size_t length = strlen(s);
  for (size_t at = 0, bytes; at < length; at += bytes) {
    bytes = tp_text_character(s + at, length - at);
    if (bytes == 0 || (unsigned char)s[at] < ' ') return false;
  }
  return length > 0;
}

/* The one entry of a request. */
static result_t *only(uint64_t id) {
  result_t *r = threadpool_wait_result(pool, id, 60000);
  assert_non_null(r);
  assert_true(r->task_id == id);
  assert_int_equal(r->flags, RESULT_FINAL);
  result_t *other = threadpool_poll_result(pool, id);
  assert_non_null(other);
  assert_int_equal(other->status, ERR_INVALID_ARGUMENT);
  threadpool_result_free(other);
  return r;
}
static void is_refused(const char *name, uint64_t id, const char *message) {
  result_t *r = only(id);
  if (r->status != ERR_INVALID_JSON || !printable(r->error_msg) ||
      (message && strncmp(r->error_msg, message, strlen(message)) != 0))
    fail_msg("%s: %d %s", name, r->status, r->error_msg);
  assert_null(r->data);
  threadpool_result_free(r);
}
static void is_echoed(const char *name, uint64_t id, const char *data, size_t length) {
  result_t *r = only(id);
  if (r->status != 0) fail_msg("%s: %d %s", name, r->status, r->error_msg);
  if (r->data_size != length || memcmp(r->data, data, length + 1) != 0)
    fail_msg("%s: %.200s", name, (char *)r->data);
  threadpool_result_free(r);
}

/* No text is a request by itself. */
static void whole_requests(void **state) {
  (void)state;
  static threadpool_request q[TEXTS];
  static uint64_t ids[TEXTS];
  pool = test_pool((threadpool_options){.workers = 2});
  for (int i = 0; i < TEXTS; i++)
    q[i] = (threadpool_request){.json = texts[i].json, .length = texts[i].length};
  assert_int_equal(threadpool_submit_batch(pool, q, TEXTS, ids), TEXTS);
  for (int i = 0; i < TEXTS; i++) {
    const char *first = texts[i].json + strspn(texts[i].json, " \t\r\n");
    is_refused(texts[i].name, ids[i],
               !texts[i].printed                ? "not JSON: "
               : *first != '{'                  ? "expected an object, got "
               : strcmp(texts[i].printed, "{}") ? "unknown member "
                                                : "no operation: ");
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

#define BEFORE "{\"op\":\"echo\",\"args\":{\"v\":"
#define AFTER  "}}"

/* BEFORE, the text and AFTER: to be freed. */
static char *in_args(const char *json, size_t length, size_t *total) {
  *total = strlen(BEFORE) + length + strlen(AFTER);
  char *whole = malloc(*total + 1);
  assert_non_null(whole);
  memcpy(whole, BEFORE, strlen(BEFORE));
  memcpy(whole + strlen(BEFORE), json, length);
  memcpy(whole + strlen(BEFORE) + length, AFTER, sizeof AFTER);
  return whole;
}
/* The echo of what in_args has made is its args. */
static void comes_back(const char *name, uint64_t id, const char *whole, size_t total) {
  size_t skip = strlen(BEFORE) - strlen("{\"v\":");
  char *args = malloc(total - skip);
  memcpy(args, whole + skip, total - skip - 1);
  args[total - skip - 1] = '\0';
  is_echoed(name, id, args, total - skip - 1);
  free(args);
}

static void values_in_arguments(void **state) {
  (void)state;
  static threadpool_request q[TEXTS];
  static uint64_t ids[TEXTS];
  pool = test_pool((threadpool_options){.workers = 2});
  for (int i = 0; i < TEXTS; i++) q[i].json = in_args(texts[i].json, texts[i].length, &q[i].length);
  assert_int_equal(threadpool_submit_batch(pool, q, TEXTS, ids), TEXTS);
  for (int i = 0; i < TEXTS; i++) {
    free((char *)q[i].json); /* it was copied */
    if (texts[i].printed) {
      size_t total;
      char *whole = in_args(texts[i].printed, strlen(texts[i].printed), &total);
      comes_back(texts[i].name, ids[i], whole, total);
      free(whole);
    } else {
      is_refused(texts[i].name, ids[i], "not JSON: ");
    }
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* Every text cut anywhere is refused, with a message that can be read. */
static void cut_requests(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  const char *json = BEFORE "[1.5e3,\"a\\u00fc\xc3\xbc\",null,{\"k\":true}]" AFTER;
  for (size_t length = 1; length < strlen(json); length++) {
    threadpool_request q = {.json = json, .length = length};
    uint64_t id;
    assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
    is_refused("cut", id, "not JSON: ");
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* `depth` times open, then 1, then `closed` times close. */
static uint64_t submit_nested(size_t depth, const char *open, const char *close, size_t closed,
                              char **whole, size_t *total) {
  size_t a = strlen(open), b = strlen(close);
  char *json = malloc(depth * a + closed * b + 1), *p = json;
  for (size_t i = 0; i < depth; i++, p += a) memcpy(p, open, a);
  *p++ = '1';
  for (size_t i = 0; i < closed; i++, p += b) memcpy(p, close, b);
  *whole = in_args(json, (size_t)(p - json), total);
  free(json);
  threadpool_request q = {.json = *whole, .length = *total};
  uint64_t id;
  assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
  return id;
}
static void deep_texts(void **state) {
  (void)state;
  static const struct {
    uint32_t most; /* 0: as it is by default, 512 */
    size_t depth, closed;
    const char *message; /* NULL: echoed */
  } cases[] = {{0, 510, 510, NULL},
               {0, 511, 511, "nested too deep: expected at most 512"},
               {0, 10000, 10000, "nested too deep"},
               {0, 100000, 0, "not JSON: "},
               {20000, 10000, 10000, NULL},
               {20000, 19998, 19998, NULL},
               {20000, 19999, 19999, "nested too deep"},
               {1, 0, 0, "nested too deep"},
               {2, 0, 0, NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pool = test_pool((threadpool_options){.workers = 1, .max_depth = cases[i].most});
    for (int object = 0; object < 2; object++) {
      char *whole;
      size_t total;
      uint64_t id = submit_nested(cases[i].depth, object ? "{\"k\":" : "[", object ? "}" : "]",
                                  cases[i].closed, &whole, &total);
      if (cases[i].message)
        is_refused("deep", id, cases[i].message);
      else
        comes_back("deep", id, whole, total);
      free(whole);
    }
    assert_int_equal(threadpool_shutdown(pool), 0);
  }
  /* Wide is not deep. */
  pool = test_pool((threadpool_options){.workers = 1, .max_depth = 4});
  const char *wide = BEFORE "[[],[1],{},{\"a\":[]},[{}],[],[],[]]" AFTER;
  is_refused("wide", threadpool_submit(pool, wide), "nested too deep");
  const char *flat = BEFORE "[[],[1],{},{\"a\":1},[2],[],[],[]]" AFTER;
  comes_back("wide", threadpool_submit(pool, flat), flat, strlen(flat));
  assert_int_equal(threadpool_shutdown(pool), 0);
}

/* One string, or many numbers, of so many bytes. */
static char *large_text(size_t size, bool numbers, size_t *total) {
  char *json = malloc(size);
  assert_non_null(json);
  memset(json, 'a', size);
  json[0] = json[size - 1] = '"';
  if (numbers) {
    for (size_t i = 1; i + 1 < size; i++) json[i] = i % 2 ? '7' : ',';
    json[0] = '[';
    json[size - 1] = ']';
  }
  char *whole = in_args(json, size, total);
  free(json);
  return whole;
}
static void large_texts(void **state) {
  (void)state;
#ifdef TEST_SANITIZED
  const size_t large = 10000001;
#else
  const size_t large = getenv("TP_QUICK") ? 10000001 : 100000001;
#endif
  for (int numbers = 0; numbers < 2; numbers++) {
    size_t total;
    uint64_t id;
    char *whole = large_text(large, numbers, &total);
    threadpool_request q = {.json = whole, .length = total};
    pool = test_pool((threadpool_options){.workers = 1, .max_request_bytes = (uint32_t)total});
    assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
    comes_back("large", id, whole, total);
    assert_int_equal(threadpool_shutdown(pool), 0);
    pool = test_pool((threadpool_options){.workers = 1, .max_request_bytes = (uint32_t)total - 1});
    assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
    is_refused("large", id, "the request has ");
    assert_int_equal(threadpool_shutdown(pool), 0);
    free(whole);
    whole = large_text(67108865, numbers, &total); /* above the default */
    q = (threadpool_request){.json = whole, .length = total};
    pool = test_pool((threadpool_options){.workers = 1});
    assert_int_equal(threadpool_submit_batch(pool, &q, 1, &id), 1);
    is_refused("large", id, "the request has ");
    assert_int_equal(threadpool_shutdown(pool), 0);
    free(whole);
  }
}

/* Names of members and operations come from anywhere: messages are cut between characters, and control nothing. */
static void messages_can_be_read(void **state) {
  (void)state;
  pool = test_pool((threadpool_options){.workers = 1});
  static const struct {
    const char *json, *message;
  } cases[] = {
      {"{\"a\\u0007\\n\\u0085\\\"b\": 1}", "unknown member \"a\\u0007\\u000a\\u0085\\\"b\": "},
      {"{\"op\": \"echo\\u0000\"}", "unknown operation: \"echo\\u0000\": known are "},
      {"{\"op\": \"\"}", "unknown operation: \"\": known are "},
      {"{\"op\": \"Echo\"}", "unknown operation: \"Echo\": is \"echo\" meant?"},
      {"{\"op\": \"handler_file-read\"}",
       "unknown operation: \"handler_file-read\": is \"file_read\" meant?"},
      {"{\"op\": \"echo\", \"task_id\": \"\"}", "member \"task_id\": "},
      {"{\"op\": \"echo\", \"task_id\": \"007\"}", "member \"task_id\": "},
      {"{\"op\": \"echo\", \"task_id\": -1}", "member \"task_id\": "},
      {"{\"op\": \"echo\", \"timeout_ms\": 0.5}",
       "member \"timeout_ms\": expected a whole number from 0 to 4294967295, got 0.5"},
      {"{\"opcode\": null}",
       "member \"opcode\": expected a whole number from 0 to 65535, got null"},
      {"{\"op\\u0000\": \"echo\"}", "unknown member \"op\\u0000\": "},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    result_t *r = only(threadpool_submit(pool, cases[i].json));
    assert_true(r->status == ERR_INVALID_JSON || r->status == ERR_UNKNOWN_OPCODE);
    if (strncmp(r->error_msg, cases[i].message, strlen(cases[i].message)) != 0)
      fail_msg("%s", r->error_msg);
    assert_true(printable(r->error_msg));
    threadpool_result_free(r);
  }
  for (int before = 0; before < 8; before++) { /* each place in a character */
    static const char *const forms[] = {"{\"%s\": 1}", "{\"op\": \"%s\"}",
                                        "{\"op\": \"echo\", \"task_id\": \"%s\"}",
                                        "{\"op\": \"echo\", \"priority\": \"%s\"}"};
    char name[400] = "", json[500];
    for (int i = 0; i < before; i++) strcat(name, "a");
    for (int i = 0; i < 60; i++) strcat(name, i % 2 ? "\xe2\x82\xac" : "\xc3\xbc");
    for (int i = 0; i < 4; i++) {
      snprintf(json, sizeof json, forms[i], name);
      result_t *r = only(threadpool_submit(pool, json));
      assert_true(r->status < 0);
      assert_true(printable(r->error_msg));
      assert_non_null(strstr(r->error_msg, "...\""));
      assert_true(strlen(r->error_msg) < sizeof r->error_msg - 1); /* whole */
      threadpool_result_free(r);
    }
  }
  assert_int_equal(threadpool_shutdown(pool), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(whole_requests), cmocka_unit_test(values_in_arguments),
      cmocka_unit_test(cut_requests),   cmocka_unit_test(deep_texts),
      cmocka_unit_test(large_texts),    cmocka_unit_test(messages_can_be_read),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
