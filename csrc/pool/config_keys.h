/* config_keys.h - every key of the config file, in one table: reading, ranges, messages and documentation come from it.
 *
 *   K1  A key is in the table and in config/config, there with its preset and a line of help (test_config.c checks).
 *   K2  Ranges here are not wider than what threadpool_create_with accepts.
 *
 * Depends on: threadpool.h. [any] thread: nothing here changes. Used by: config.c.
 */
#ifndef TP_POOL_CONFIG_KEYS_H
#define TP_POOL_CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tp_config_key {
  const char *name;
  const char *member; /* of threadpool_options; "" if none */
  enum { TP_KEY_INT, TP_KEY_UINT32, TP_KEY_WORD, TP_KEY_PATH } kind;
  bool weak;            /* another key for the same member goes first */
  size_t offset;        /* of the member */
  int64_t least, most;  /* of a number */
  const char *no, *yes; /* words for false and true */
  const char *preset;   /* the default, as one would write it; "" if none */
  const char *help;
} tp_config_key;

enum { TP_CONFIG_KEYS = 13 };
extern const tp_config_key tp_config_keys[TP_CONFIG_KEYS];

/* The name of the key that was probably meant: two slips away at most, one if it is short, or called as the option is in
 * C (`workers`). NULL: none. `key` is not in the table. */
const char *tp_config_key_meant(const char *key, size_t length);

#endif
