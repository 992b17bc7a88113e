/* text.h - foreign text in messages: what people read is valid UTF-8 without control characters, and never cut within
 * a character.
 *
 * Depends on: nothing. [any] thread.
 */
#ifndef TP_BASE_TEXT_H
#define TP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at the head of `length` bytes; 0: no valid UTF-8 (RFC 3629), or length is 0. */
size_t tp_text_character(const char *text, size_t length);

/* Write `length` bytes of any text to `out`, `size` bytes with the zero (at least 8): control characters, ", \ and
 * bytes that are no UTF-8 are escaped as in JSON; what does not fit is left out, and "..." says so. Returns out. */
char *tp_text_show(char *out, size_t size, const char *text, size_t length);

/* Make a message presentable in place: each byte that is no UTF-8, and each control character but tab and line feed,
 * becomes a question mark. `cut`: it may end within a character, which is removed. */
void tp_text_clean(char *text, bool cut);

#endif
