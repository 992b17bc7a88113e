#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char said[TP_SAID_SIZE];
static _Thread_local int said_code;

int tp_say(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(said, sizeof said, format, args);
  va_end(args);
  said_code = code;
  return code;
}

const char *tp_said(void) {
  return said;
}

int tp_said_code(void) {
  return said_code;
}

const char *tp_error_name(int code) {
  switch (code) {
#define CASE(name, value, text)                                                                    \
  case value: return #name;
    THREADPOOL_ERRORS(CASE)
#undef CASE
  }
  return "ERR_UNKNOWN";
}

const char *tp_error_text(int code) {
  switch (code) {
#define CASE(name, value, text)                                                                    \
  case value: return text;
    THREADPOOL_ERRORS(CASE)
#undef CASE
  }
  return "unknown error";
}
