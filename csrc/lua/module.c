/* module.c - `require "threadpool.core"` in the program's own state: pools, and waiting for results.
 *
 * What the functions mean to a program is said in lua/threadpool/; these check what would crash and call down. */
#include <math.h>

#include "base/error.h"
#include "base/process.h"
#include "lua/channel_lua.h"
#include "lua/json.h"
#include "lua/vm.h"
#include "sched/stop.h"

/* Of the registry: a metatable, the env of this state, its core. */
static const char ENV[] = "threadpool.core.env", ENV_OF_STATE[] = "threadpool.core.this",
                  CORE[] = "threadpool.core";

void tp_module_open(tp_env *env, lua_State *L) {
  tp_lua_json_open(L);
  tp_channel_open(env, L);
}

/* --- making a pool */

static const char *text_of(lua_State *L, int table, const char *name) {
  lua_getfield(L, table, name);
  const char *text = lua_tostring(L, -1);
  lua_pop(L, 1); /* the table keeps it */
  return text ? text : "";
}

/* A whole number of `table`, 0 if it is not there. */
static int64_t whole_of(lua_State *L, int table, const char *name) {
  lua_getfield(L, table, name);
  double n = lua_tonumber(L, -1);
  bool good =
      lua_isnil(L, -1) || (lua_type(L, -1) == LUA_TNUMBER && n == floor(n) && fabs(n) < 1e9);
  lua_pop(L, 1);
  if (!good) luaL_error(L, "option '%s': expected a whole number", name);
  return (int64_t)n;
}

static bool flag_of(lua_State *L, int table, const char *name) {
  lua_getfield(L, table, name);
  int type = lua_type(L, -1);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  if (type != LUA_TNIL && type != LUA_TBOOLEAN)
    luaL_error(L, "option '%s': expected true or false", name);
  return on;
}

static threadpool_t *create(lua_State *L, int options) {
  threadpool_options o = {.workers = (int)whole_of(L, options, "workers"),
                          .blocking = (int)whole_of(L, options, "blocking"),
                          .drain_ms = (int)whole_of(L, options, "drain_ms"),
                          .park_timeout_ms = (int)whole_of(L, options, "park_timeout_ms"),
                          .idle_yield = flag_of(L, options, "idle_yield"),
                          .pin = flag_of(L, options, "pin")};
#define LIMIT(name)                                                                                \
  int64_t name = whole_of(L, options, #name);                                                      \
  if (name < 0) luaL_error(L, "option '%s': expected 0 or more", #name);                           \
  o.name = (uint32_t)name
  LIMIT(max_pending);
  LIMIT(max_request_bytes);
  LIMIT(max_depth);
  LIMIT(window);
  LIMIT(initial_capacity);
#undef LIMIT
  return threadpool_create_with(&o, NULL);
}

static int failed(lua_State *L) {
  lua_pushnil(L);
  lua_pushnumber(L, tp_said_code());
  lua_pushstring(L, tp_said());
  return 3;
}

static void leave_inbox(tp_inbox *inbox) {
  if (!inbox || tp_sub(&inbox->users, 1, acq_rel) > 1)
    return; /* the last one sees what the others did */
  tp_completions_free(inbox->queue);
  tp_put(inbox);
}

/* create(options) -> pool. options.config: a file; else what threadpool_options has. options.path, cpath: of `package`;
 * options.init: a function that each worker's state calls first. nil, code, message */
static int core_create(lua_State *L) {
  tp_env *env = tp_env_of(L);
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  int64_t grace_ms = whole_of(L, 1, "grace_ms");
  if (grace_ms < 0) luaL_error(L, "option 'grace': expected seconds, 0 or more");
  tp_lua_pool *p = tp_env_push_pool(L); /* first: it closes what comes, whatever fails */
  const char *config = text_of(L, 1, "config");
  threadpool_t *pool = *config ? threadpool_create(config) : create(L, 1);
  if (!pool) return failed(L);
  p->pool = pool;
  p->owner = true;
  p->mark = env->marks++;
  p->inbox = *(tp_inbox **)(env + 1);
  tp_add(&p->inbox->users, 1, relaxed); /* we are one */
  p->lua = tp_lua_new(pool, text_of(L, 1, "path"), text_of(L, 1, "cpath"), (unsigned)grace_ms);
  if (!p->lua) tp_say(ERR_MALLOC_FAILED, "out of memory for the pool's Lua states");
  if (!p->lua || tp_lua_register(p->lua) != 0) {
    threadpool_shutdown(pool);
    tp_lua_free(p->lua);
    leave_inbox(p->inbox);
    p->inbox = NULL;
    p->lua = NULL;
    p->pool = NULL;
    return failed(L);
  }
  p->closed = false;
  lua_getfield(L, 1, "init");
  if (lua_isfunction(L, -1)) {
    tp_codec *codec = tp_codec_begin(&env->codec, L, "init");
    tp_codec_write(codec, L, tp_lua_protos(p->lua), lua_gettop(L), lua_gettop(L));
    tp_bytes_put(&p->lua->init, codec->out.data, codec->out.size);
    if (p->lua->init.failed) luaL_error(L, "not enough memory");
    if (codec->mentions.size) tp_lua_mention(p->lua, 0, codec);
  }
  lua_settop(L, 2);
  return 1;
}

/* close(pool, drain_ms): -1 is not at all */
static int core_close(lua_State *L) {
  tp_lua_pool *p = tp_env_pool(L, 1);
  p->closed = true;
  int code = threadpool_shutdown_within(p->pool, (int)luaL_checknumber(L, 2));
  if (code == 0) {
    tp_lua_close(p->lua);
    leave_inbox(p->inbox);
    p->inbox = NULL;
  }
  lua_pushnumber(L, code);
  return 1;
}

/* A pool that nobody has any more, or whose state ends. Its shutdown may have to wait for what runs, which a collector
 * must not: a thread does it. */
typedef struct reaped {
  threadpool_t *pool;
  tp_lua *lua;
  tp_inbox *inbox;
} reaped;

static void reap_now(reaped *r) {
  if (threadpool_shutdown_within(r->pool, -1) == 0) {
    tp_lua_close(r->lua);
    leave_inbox(r->inbox);
    tp_lua_free(r->lua);
  } /* else it belongs to a parent: all of it stays */
  tp_put(r);
}

static void *reap(void *arg) {
  tp_stoppable me;
  tp_stop_enter(&me);
  reap_now(arg);
  tp_stop_leave(&me);
  return NULL;
}

static int core_collect_pool(lua_State *L) {
  tp_lua_pool *p = lua_touserdata(L, 1);
  tp_lua *lua = p->owner ? p->lua : NULL;
  p->lua = NULL;
  if (lua && p->closed) {
    tp_lua_free(lua);
  } else if (lua && !tp_forked(p->pool->made_in)) {
    p->closed = true;
    reaped *r = tp_get(sizeof *r);
    pthread_t thread;
    if (!r) return 0; /* the end of the process ends it */
    *r = (reaped){p->pool, lua, p->inbox};
    if (tp_thread_start(&thread, reap, r) == 0)
      pthread_detach(thread);
    else
      reap_now(r);
  }
  return 0;
}

/* fd() -> a descriptor that is readable while there is something; nil, code, message */
static int core_fd(lua_State *L) {
  int fd = tp_completions_fd(tp_env_of(L)->queue);
  if (fd < 0) return failed(L);
  lua_pushnumber(L, fd);
  return 1;
}

/* --- the module */

static int collect_env(lua_State *L) {
  tp_env *env = lua_touserdata(L, 1);
  tp_inbox *inbox = *(tp_inbox **)(env + 1);
  if (!inbox) tp_completions_free(env->queue); /* the module could not be loaded */
  env->queue = NULL;
  tp_env_free(env);
  leave_inbox(inbox);
  return 0;
}

__attribute__((visibility("default"))) int luaopen_threadpool_core(lua_State *L);

int luaopen_threadpool_core(lua_State *L) {
  static const struct {
    const char *name;
    lua_CFunction f;
  } functions[] = {{"create", core_create}, {"close", core_close}, {"fd", core_fd}};
  if (!luaJIT_setmode)
    return luaL_error(L, "threadpool needs LuaJIT 2.1: run it with `luajit` (this is another Lua)");
  lua_settop(L, 0);
  lua_getfield(L, LUA_REGISTRYINDEX, CORE);
  if (!lua_isnil(L, 1))
    return 1; /* it was reloaded: one queue a state, so that what is on its way arrives */
  tp_env *env = lua_newuserdata(L, sizeof *env + sizeof(tp_inbox *));
  *env = (tp_env){0};
  tp_inbox **inbox = (tp_inbox **)(env + 1);
  *inbox = NULL;
  luaL_newmetatable(L, ENV);
  lua_pushcfunction(L, collect_env);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX,
               ENV_OF_STATE); /* older than the pools, so collected after them */
  lua_newtable(L);
  tp_env_open(env, L, NULL, NULL);
  *inbox = tp_get(sizeof **inbox);
  if (!*inbox) return luaL_error(L, "not enough memory");
  **inbox = (tp_inbox){env->queue, 1};
  tp_module_open(env, L);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    tp_env_add(env, L, functions[i].name, functions[i].f);
  tp_env_push_pool(L);
  lua_getmetatable(L, -1);
  lua_pushcfunction(L, core_collect_pool);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 2);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, CORE);
  return 1;
}
