/* error.h - names and texts of the error codes (threadpool_errors.h). */
#ifndef TP_BASE_ERROR_H
#define TP_BASE_ERROR_H

#include "threadpool_errors.h"

/* [any] "ERR_TIMEOUT" and "timed out"; for a code not in the list "ERR_UNKNOWN" and "unknown error". */
const char *tp_error_name(int code);
const char *tp_error_text(int code);

#endif
