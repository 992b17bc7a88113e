#include "lua/json.h"

#include <stdint.h>
#include <stdio.h>
#include <yyjson.h>

#include "base/text.h"
#include "pool/request.h"

/* --- decode: yyjson parses; its values lie one after another, and one walk, without recursion, makes Lua's of them */

typedef struct level {
  size_t left; /* values that are still to come */
  int index;   /* of an array: of the value that comes next */
  bool object;
} level;

typedef struct reading {
  yyjson_doc *doc;
  bool deep; /* more than TP_JSON_DEPTH levels */
} reading;

static void push_scalar(lua_State *L, yyjson_val *v) {
  switch (yyjson_get_tag(v)) {
  case YYJSON_TYPE_NUM | YYJSON_SUBTYPE_REAL: lua_pushnumber(L, yyjson_get_real(v)); break;
  case YYJSON_TYPE_NUM | YYJSON_SUBTYPE_UINT: lua_pushnumber(L, (double)yyjson_get_uint(v)); break;
  case YYJSON_TYPE_NUM | YYJSON_SUBTYPE_SINT: lua_pushnumber(L, (double)yyjson_get_sint(v)); break;
  case YYJSON_TYPE_BOOL | YYJSON_SUBTYPE_TRUE: lua_pushboolean(L, 1); break;
  case YYJSON_TYPE_BOOL | YYJSON_SUBTYPE_FALSE: lua_pushboolean(L, 0); break;
  case YYJSON_TYPE_NULL: lua_pushlightuserdata(L, NULL); break;
  default: lua_pushlstring(L, yyjson_get_str(v), yyjson_get_len(v)); break;
  }
}

/* The table for the container, on top. True: it is empty, and so done. */
static bool push_table(lua_State *L, yyjson_val *v) {
  int size = (int)yyjson_get_len(v); /* more than Lua has is an error there */
  bool object = yyjson_is_obj(v);
  lua_createtable(L, object ? 0 : size, object ? size : 0);
  if (!object && size == 0) {
    lua_getfield(L, LUA_REGISTRYINDEX, TP_JSON_ARRAY);
    lua_setmetatable(L, -2);
  }
  return size == 0;
}

/* The value on top goes into its table, and that one, if it was the last, into its own, and so on. */
static int store(lua_State *L, level *levels, int depth) {
  for (; depth > 0; depth--) {
    level *l = &levels[depth - 1];
    if (l->object)
      lua_rawset(L, -3);
    else
      lua_rawseti(L, -2, ++l->index);
    if (--l->left > 0) break;
  }
  return depth;
}

/* (reading) -> value. Protected, so that the document is freed whatever is raised. */
static int decode_body(lua_State *L) {
  reading *r = lua_touserdata(L, 1);
  level levels[TP_JSON_DEPTH];
  int depth = 0;
  yyjson_val *v = yyjson_doc_get_root(r->doc);
  for (;; v++) {
    if (!yyjson_is_ctn(v)) {
      push_scalar(L, v);
    } else if (depth == TP_JSON_DEPTH) {
      r->deep = true;
      return 0;
    } else {
      luaL_checkstack(L, 4, "JSON");
      if (!push_table(L, v)) {
        levels[depth++] = (level){yyjson_get_len(v), 0, yyjson_is_obj(v)};
        if (yyjson_is_obj(v)) push_scalar(L, ++v); /* a key */
        continue;
      }
    }
    if ((depth = store(L, levels, depth)) == 0) return 1;
    if (levels[depth - 1].object) push_scalar(L, ++v);
  }
}

/* nil and where what is wrong. */
static int refuse(lua_State *L, const char *text, size_t length, const yyjson_read_err *error) {
  size_t line = 1, column = 1, at = error->pos < length ? error->pos : length;
  for (size_t i = 0; i < at; i++) {
    if (text[i] == '\n') {
      line++;
      column = 1;
    } else if (((unsigned char)text[i] & 0xC0) != 0x80) {
      column++; /* characters, as editors count */
    }
  }
  char shown[32], message[200];
  snprintf(message, sizeof message, "not JSON: %s at line %zu, column %zu (byte %zu)%s%s%s",
           error->msg, line, column, at + 1, at < length ? ", before \"" : ", where the text ends",
           tp_text_show(shown, sizeof shown, text + at, length - at), at < length ? "\"" : "");
  lua_pushnil(L);
  lua_pushstring(L, message);
  return 2;
}

/* decode(text) -> value | nil, message */
static int decode(lua_State *L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  size_t length;
  const char *text = lua_tolstring(L, 1, &length);
  tp_arena arena; /* not initialised as a whole: its memory is not */
  arena.used = arena.last = 0;
  arena.blocks = NULL;
  const yyjson_alc memory = tp_json_memory(&arena);
  yyjson_read_err error;
  reading r = {0};
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushlightuserdata(L, &r);
  /* Without YYJSON_READ_INSITU the text is left as it is. */
  r.doc = yyjson_read_opts((char *)(uintptr_t)text, length, 0, &memory, &error);
  if (!r.doc) {
    if (error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
      return luaL_error(L, "out of memory for %d bytes of JSON", (int)length);
    return refuse(L, text, length, &error);
  }
  int status = lua_pcall(L, 1, 1, 0);
  yyjson_doc_free(r.doc);
  if (status != LUA_OK) return lua_error(L);
  if (!r.deep) return 1;
  lua_pushnil(L);
  lua_pushfstring(L, "nested too deep: at most %d levels", TP_JSON_DEPTH);
  return 2;
}

/* --- the module */

/* array(table?) -> table, marked */
static int array(lua_State *L) {
  if (lua_isnoneornil(L, 1)) {
    lua_settop(L, 0);
    lua_newtable(L);
  }
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  lua_getfield(L, LUA_REGISTRYINDEX, TP_JSON_ARRAY);
  if (lua_getmetatable(L, 1) && !lua_rawequal(L, -1, 2))
    return luaL_argerror(L, 1, "it has a metatable already");
  lua_settop(L, 2);
  lua_setmetatable(L, 1);
  return 1;
}

/* (cdata) -> its text, of an int64_t or uint64_t; else nothing. Upvalues: ffi.istype, int64_t, uint64_t, tostring. It
 * asks istype, because a struct may have a __tostring. */
static int int64_text(lua_State *L) {
  bool is = false;
  for (int type = 2; type <= 3 && !is; type++) {
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, lua_upvalueindex(type));
    lua_pushvalue(L, 1);
    lua_call(L, 2, 1);
    is = lua_toboolean(L, -1);
    lua_settop(L, 1);
  }
  if (!is) return 0;
  lua_pushvalue(L, lua_upvalueindex(4));
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  return 1;
}

static void push_type(lua_State *L, const char *name) {
  lua_getfield(L, 1, "typeof");
  lua_pushstring(L, name);
  lua_call(L, 1, 1);
}

/* () -> ; an error where there is no ffi. */
static int open_int64(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "ffi");
  lua_call(L, 1, 1);
  lua_getfield(L, 1, "istype");
  push_type(L, "int64_t");
  push_type(L, "uint64_t");
  lua_getglobal(L, "tostring");
  lua_pushcclosure(L, int64_text, 4);
  lua_setfield(L, LUA_REGISTRYINDEX, TP_JSON_INT64);
  return 0;
}

/* A function whose upvalue is its protected part. */
static void set_function(lua_State *L, const char *name, lua_CFunction f, lua_CFunction body) {
  lua_pushcfunction(L, body);
  lua_pushcclosure(L, f, 1);
  lua_setfield(L, -2, name);
}

void tp_lua_json_open(lua_State *L) {
  luaL_checkstack(L, 8, "JSON");
  luaL_newmetatable(L, TP_JSON_ARRAY);
  lua_pushcfunction(L, open_int64);
  if (lua_pcall(L, 0, 0, 0) != LUA_OK) lua_settop(L, -2); /* then there is no cdata either */
  lua_settop(L, -2);
  set_function(L, "json_encode", tp_lua_json_encode, tp_lua_json_encode_body);
  set_function(L, "json_decode", decode, decode_body);
  lua_pushcfunction(L, array);
  lua_setfield(L, -2, "json_array");
  lua_pushlightuserdata(L, NULL);
  lua_setfield(L, -2, "json_null");
}
