#include "base/text.h"

#include <stdio.h>
#include <string.h>

static bool follows(unsigned char c) {
  return (c & 0xC0) == 0x80;
}

size_t tp_text_character(const char *text, size_t length) {
  const unsigned char *t = (const unsigned char *)text;
  if (length == 0) return 0;
  if (t[0] < 0x80) return 1;
  if (t[0] < 0xC2 || t[0] > 0xF4) return 0; /* no head, overlong, above U+10FFFF */
  if (length < 2 || !follows(t[1])) return 0;
  if (t[0] < 0xE0) return 2;
  if (t[0] == 0xE0 && t[1] < 0xA0) return 0; /* overlong */
  if (t[0] == 0xED && t[1] > 0x9F) return 0; /* a surrogate */
  if (length < 3 || !follows(t[2])) return 0;
  if (t[0] < 0xF0) return 3;
  if (t[0] == 0xF0 && t[1] < 0x90) return 0; /* overlong */
  if (t[0] == 0xF4 && t[1] > 0x8F) return 0; /* above U+10FFFF */
  return length >= 4 && follows(t[3]) ? 4 : 0;
}

/* U+0000 to U+001F, U+007F to U+009F. */
static bool is_control(const char *text, size_t bytes) {
  unsigned char c = (unsigned char)text[0];
  return bytes == 1 ? c < 0x20 || c == 0x7F
                    : bytes == 2 && c == 0xC2 && (unsigned char)text[1] < 0xA0;
}

char *tp_text_show(char *out, size_t size, const char *text, size_t length) {
  size_t used = 0, mark = 0; /* where there was room for "..." last */
  for (size_t at = 0; at < length;) {
    char piece[8];
    size_t bytes = tp_text_character(text + at, length - at), n = bytes;
    const char *c = text + at;
    if (bytes == 0 || is_control(c, bytes)) {
      unsigned value = (unsigned char)(bytes == 2 ? c[1] : c[0]);
      n = (size_t)snprintf(piece, sizeof piece, bytes ? "\\u%04x" : "\\x%02x", value);
      c = piece;
    } else if (*c == '"' || *c == '\\') {
      piece[0] = '\\';
      piece[1] = *c;
      n = 2;
      c = piece;
    }
    if (used + n >= size) {
      memcpy(out + mark, "...", 3);
      used = mark + 3;
      break;
    }
    memcpy(out + used, c, n);
    used += n;
    if (used + 3 < size) mark = used;
    at += bytes ? bytes : 1;
  }
  out[used] = '\0';
  return out;
}

void tp_text_clean(char *text, bool cut) {
  size_t length = strlen(text);
  for (size_t at = 0; at < length;) {
    size_t bytes = tp_text_character(text + at, length - at);
    if (bytes == 0) {
      size_t left = length - at;
      bool head = (unsigned char)text[at] >= 0xC2 && left < 4;
      for (size_t i = 1; i < left; i++) head = head && follows((unsigned char)text[at + i]);
      if (cut && head) {
        text[at] = '\0';
        return;
      }
    }
    if (bytes == 0 || (is_control(text + at, bytes) && text[at] != '\t' && text[at] != '\n'))
      memset(text + at, '?', bytes ? bytes : 1);
    at += bytes ? bytes : 1;
  }
}
