/* json.h - JSON for Lua: values to text and back.
 *
 *   Lua                                      JSON
 *   nil, json.null                           null
 *   boolean                                  true, false
 *   number                                   whole numbers up to 2^53 as they are, others in the fewest digits that are
 *                                            read as the same double; inf and nan are errors
 *   int64_t, uint64_t (ffi)                  exactly; other cdata is an error
 *   string                                   a string; each byte that is no UTF-8 becomes U+FFFD
 *   table with keys 1 to n, n >= 1           an array
 *   table with string keys                   an object, its members in any order
 *   empty table                              {}, or [] if json.array has marked it
 *   anything else, a hole, a mix of keys,
 *   a cycle, more than TP_JSON_DEPTH levels  an error, which names the place: args.headers[2]
 *
 * Tables are read as they are: no metamethod is called. Back: null becomes json.null, so that it can be a member; every
 * number becomes a double, which is exact for whole numbers up to 2^53 (send larger ones as strings); [] is marked.
 *
 * Depends on: base/, lua/bytes.h, lua/lua_api.h, yyjson. Used by: lua/. [lua] all of it.
 */
#ifndef TP_LUA_JSON_H
#define TP_LUA_JSON_H

#include "lua/bytes.h"
#include "lua/lua_api.h"

enum { TP_JSON_DEPTH = 512 };

/* In the registry. */
#define TP_JSON_ARRAY "threadpool.json.array" /* metatable of what json.array has marked */
#define TP_JSON_INT64 "threadpool.json.int64" /* what turns an int64_t or uint64_t into text */

/* Append the value at `index` to `out` as JSON. `name` is what messages call it, as in `args.headers[2]: ...`; NULL:
 * they begin with its member. Raises a Lua error, with the position of the running C function's caller, on what cannot
 * be written and when memory is out: `out` then holds a part, and belongs to somebody who survives the error. A cdata's
 * text is made by Lua, whose collector may run finalizers meanwhile: they must not come to `out`. */
void tp_json_encode(lua_State *L, int index, const char *name, tp_bytes *out);

/* encode(value) -> text, as a lua_CFunction; its upvalue is tp_lua_json_encode_body. */
int tp_lua_json_encode(lua_State *L);
int tp_lua_json_encode_body(lua_State *L);

/* Add json_encode, json_decode, json_array and json_null to the table on top of the stack. Any number of times. */
void tp_lua_json_open(lua_State *L);

#endif
