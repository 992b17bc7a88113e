/* error.h - names and texts of the error codes (threadpool_errors.h). */
#ifndef TP_BASE_ERROR_H
#define TP_BASE_ERROR_H

#include "threadpool_errors.h"

/* [any] "ERR_TIMEOUT" and "timed out"; for a code not in the list "ERR_UNKNOWN" and "unknown error". */
const char *tp_error_name(int code);
const char *tp_error_text(int code);

/* [any] Remember a message for people, as of printf, for threadpool_last_error on this thread; returns the code.
 * Cut to TP_SAID_SIZE - 1 bytes. */
enum { TP_SAID_SIZE = 512 };
int tp_say(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* [any] The last one of this thread, "" at first. */
const char *tp_said(void);
/* [any] And its code. */
int tp_said_code(void);

#endif
