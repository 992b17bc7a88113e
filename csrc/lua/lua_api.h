/* lua_api.h - what we use of the host's Lua, declared by hand and weak: the library links without Lua, and in a program
 * without one it loads all the same (tp_lua_present).
 *
 * The ABI is that of LuaJIT 2.1 (Lua 5.1 with some of 5.2). Depends on: nothing. Used by: lua/.
 */
#ifndef TP_LUA_LUA_API_H
#define TP_LUA_LUA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lua_State lua_State;
typedef struct lua_Debug lua_Debug;
typedef int (*lua_CFunction)(lua_State *L);
typedef void *(*lua_Alloc)(void *ud, void *ptr, size_t osize, size_t nsize);
typedef const char *(*lua_Reader)(lua_State *L, void *ud, size_t *size);
typedef int (*lua_Writer)(lua_State *L, const void *p, size_t size, void *ud);
typedef void (*lua_Hook)(lua_State *L, lua_Debug *ar);

enum {
  LUA_TNONE = -1,
  LUA_TNIL,
  LUA_TBOOLEAN,
  LUA_TLIGHTUSERDATA,
  LUA_TNUMBER,
  LUA_TSTRING,
  LUA_TTABLE,
  LUA_TFUNCTION,
  LUA_TUSERDATA,
  LUA_TTHREAD,
  LUA_TCDATA = 10
};
enum { LUA_OK, LUA_YIELD, LUA_ERRRUN, LUA_ERRSYNTAX, LUA_ERRMEM, LUA_ERRERR };
enum { LUA_REGISTRYINDEX = -10000, LUA_GLOBALSINDEX = -10002 };
enum { LUA_MASKCALL = 1, LUA_MASKRET = 2, LUA_MASKLINE = 4, LUA_MASKCOUNT = 8 };
enum { LUA_GCSTOP, LUA_GCRESTART, LUA_GCCOLLECT, LUA_GCCOUNT };
#define lua_upvalueindex(i) (LUA_GLOBALSINDEX - (i))

struct lua_Debug {
  int event;
  const char *name, *namewhat, *what, *source;
  int currentline, nups, linedefined, lastlinedefined;
  char short_src[60];
  int i_ci;
};

#define TP_WEAK   __attribute__((weak))
#define TP_RAISES __attribute__((noreturn)) /* int, so that `return` may stand before a call */
TP_WEAK lua_State *lua_newstate(lua_Alloc f, void *ud);
TP_WEAK lua_State *luaL_newstate(void);
TP_WEAK void luaL_openlibs(lua_State *L);
TP_WEAK void lua_close(lua_State *L);
TP_WEAK lua_State *lua_newthread(lua_State *L);
TP_WEAK lua_CFunction lua_atpanic(lua_State *L, lua_CFunction f);

TP_WEAK int lua_gettop(lua_State *L);
TP_WEAK void lua_settop(lua_State *L, int index);
TP_WEAK void lua_pushvalue(lua_State *L, int index);
TP_WEAK void lua_remove(lua_State *L, int index);
TP_WEAK void lua_insert(lua_State *L, int index);
TP_WEAK void lua_replace(lua_State *L, int index);
TP_WEAK int lua_checkstack(lua_State *L, int n);
TP_WEAK void lua_xmove(lua_State *from, lua_State *to, int n);

TP_WEAK int lua_type(lua_State *L, int index);
TP_WEAK const char *lua_typename(lua_State *L, int type);
TP_WEAK int lua_iscfunction(lua_State *L, int index);
TP_WEAK int lua_isnumber(lua_State *L, int index);
TP_WEAK int lua_rawequal(lua_State *L, int a, int b);
TP_WEAK double lua_tonumber(lua_State *L, int index);
TP_WEAK int lua_toboolean(lua_State *L, int index);
TP_WEAK const char *lua_tolstring(lua_State *L, int index, size_t *size);
TP_WEAK size_t lua_objlen(lua_State *L, int index);
TP_WEAK void *lua_touserdata(lua_State *L, int index);
TP_WEAK lua_State *lua_tothread(lua_State *L, int index);
TP_WEAK const void *lua_topointer(lua_State *L, int index);

TP_WEAK void lua_pushnil(lua_State *L);
TP_WEAK void lua_pushnumber(lua_State *L, double n);
TP_WEAK void lua_pushinteger(lua_State *L, ptrdiff_t n);
TP_WEAK void lua_pushlstring(lua_State *L, const char *s, size_t size);
TP_WEAK void lua_pushstring(lua_State *L, const char *s);
TP_WEAK const char *lua_pushfstring(lua_State *L, const char *format, ...);
TP_WEAK void lua_pushcclosure(lua_State *L, lua_CFunction f, int n);
TP_WEAK void lua_pushboolean(lua_State *L, int b);
TP_WEAK void lua_pushlightuserdata(lua_State *L, void *p);
TP_WEAK int lua_pushthread(lua_State *L);

TP_WEAK void lua_gettable(lua_State *L, int index);
TP_WEAK void lua_getfield(lua_State *L, int index, const char *k);
TP_WEAK void lua_rawget(lua_State *L, int index);
TP_WEAK void lua_rawgeti(lua_State *L, int index, int n);
TP_WEAK void lua_createtable(lua_State *L, int narr, int nrec);
TP_WEAK void *lua_newuserdata(lua_State *L, size_t size);
TP_WEAK int lua_getmetatable(lua_State *L, int index);
TP_WEAK void lua_setfield(lua_State *L, int index, const char *k);
TP_WEAK void lua_rawset(lua_State *L, int index);
TP_WEAK void lua_rawseti(lua_State *L, int index, int n);
TP_WEAK int lua_setmetatable(lua_State *L, int index);

TP_WEAK void lua_call(lua_State *L, int nargs, int nresults);
TP_WEAK int lua_pcall(lua_State *L, int nargs, int nresults, int handler);
TP_WEAK int lua_cpcall(lua_State *L, lua_CFunction f, void *ud);
TP_WEAK int lua_load(lua_State *L, lua_Reader reader, void *ud, const char *name);
TP_WEAK int lua_dump(lua_State *L, lua_Writer writer, void *ud);
TP_WEAK int lua_resume(lua_State *L, int nargs);
TP_WEAK TP_RAISES int lua_error(lua_State *L);
TP_WEAK void lua_concat(lua_State *L, int n);
TP_WEAK int lua_next(lua_State *L, int index);
TP_WEAK int lua_gc(lua_State *L, int what, int data);

TP_WEAK int lua_getstack(lua_State *L, int level, lua_Debug *ar);
TP_WEAK int lua_getinfo(lua_State *L, const char *what, lua_Debug *ar);
TP_WEAK const char *lua_getupvalue(lua_State *L, int index, int n);
TP_WEAK const char *lua_setupvalue(lua_State *L, int index, int n);
TP_WEAK int lua_sethook(lua_State *L, lua_Hook f, int mask, int count);
TP_WEAK int lua_gethookmask(lua_State *L);
TP_WEAK int lua_gethookcount(lua_State *L);

TP_WEAK TP_RAISES int luaL_error(lua_State *L, const char *format, ...);
TP_WEAK TP_RAISES int luaL_argerror(lua_State *L, int arg, const char *message);
TP_WEAK void luaL_checktype(lua_State *L, int arg, int type);
TP_WEAK void luaL_checkstack(lua_State *L, int n, const char *message);
TP_WEAK double luaL_checknumber(lua_State *L, int arg);
TP_WEAK const char *luaL_checklstring(lua_State *L, int arg, size_t *size);
TP_WEAK void *luaL_checkudata(lua_State *L, int arg, const char *name);
TP_WEAK int luaL_newmetatable(lua_State *L, const char *name);
TP_WEAK int luaL_ref(lua_State *L, int table);
TP_WEAK void luaL_unref(lua_State *L, int table, int ref);
TP_WEAK void luaL_where(lua_State *L, int level);
TP_WEAK void luaL_traceback(lua_State *L, lua_State *of, const char *message, int level);

/* Only LuaJIT has it, in all its builds: another Lua is known by it before anything else is asked of it. */
TP_WEAK int luaJIT_setmode(lua_State *L, int index, int mode);

#define lua_pop(L, n)           lua_settop(L, -(n)-1)
#define lua_newtable(L)         lua_createtable(L, 0, 0)
#define lua_pushcfunction(L, f) lua_pushcclosure(L, f, 0)
#define lua_tostring(L, i)      lua_tolstring(L, i, NULL)
#define lua_isnil(L, i)         (lua_type(L, i) == LUA_TNIL)
#define lua_isnoneornil(L, i)   (lua_type(L, i) <= LUA_TNIL)
#define lua_isfunction(L, i)    (lua_type(L, i) == LUA_TFUNCTION)
#define lua_istable(L, i)       (lua_type(L, i) == LUA_TTABLE)
#define lua_getglobal(L, k)     lua_getfield(L, LUA_GLOBALSINDEX, k)
#define lua_setglobal(L, k)     lua_setfield(L, LUA_GLOBALSINDEX, k)

static inline bool tp_lua_present(void) {
  return lua_newstate != NULL;
}

#endif
