#include "base/error.h"

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
