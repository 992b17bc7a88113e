#include "lua/env.h"

#include <limits.h>

#include "base/error.h"
#include "base/process.h"
#include "lua/channel_lua.h"
#include "lua/vm.h"

static const char POOL[] = "threadpool.core.pool";

void tp_env_add(tp_env *env, lua_State *L, const char *name, lua_CFunction f) {
  lua_pushlightuserdata(L, env);
  lua_pushcclosure(L, f, 1);
  lua_setfield(L, -2, name);
}

/* Raises an error at the line that called the Lua function that called ours. */
static int misuse(lua_State *L, const char *text) {
  luaL_where(L, 2);
  lua_pushstring(L, text);
  lua_concat(L, 2);
  return lua_error(L);
}

/* --- pools */

tp_lua_pool *tp_env_push_pool(lua_State *L) {
  tp_lua_pool *p = lua_newuserdata(L, sizeof *p);
  *p = (tp_lua_pool){.kind = POOL, .closed = true};
  luaL_newmetatable(L, POOL);
  lua_setmetatable(L, -2);
  return p;
}

/* luaL_checkudata takes as long as the rest of a submission. */
static tp_lua_pool *check_pool(lua_State *L, int arg) {
  tp_lua_pool *p = lua_touserdata(L, arg);
  if (!p || lua_objlen(L, arg) != sizeof *p || p->kind != POOL) /* a bare pointer has no length */
    luaL_argerror(L, arg, "a pool expected");
  return p;
}

tp_lua_pool *tp_env_pool(lua_State *L, int arg) {
  tp_lua_pool *p = check_pool(L, arg);
  if (p->closed) misuse(L, "the pool is closed");
  return p;
}

/* The same; NULL after tp_say: it is closed. */
static tp_lua_pool *open_pool(lua_State *L, int arg) {
  tp_lua_pool *p = check_pool(L, arg);
  if (p->closed) tp_say(ERR_SHUTDOWN, "the pool is closed");
  return p->closed ? NULL : p;
}

/* nil, code, message */
static int failed(lua_State *L, int code) {
  lua_pushnil(L);
  lua_pushnumber(L, code);
  lua_pushstring(L, *tp_said() ? tp_said() : tp_error_text(code));
  return 3;
}

/* --- submitting */

static const char *const PRIORITIES[] = {"normal", "high", "low"};

static int priority_of(lua_State *L, int options) {
  lua_getfield(L, options, "priority");
  const char *name = lua_tostring(L, -1);
  int priority = name ? -1 : THREADPOOL_NORMAL;
  for (int i = 0; name && i < 3; i++)
    if (strcmp(name, PRIORITIES[i]) == 0) priority = i;
  if (priority < 0 || (!name && !lua_isnil(L, -1)))
    misuse(L, "option 'priority': expected \"high\", \"normal\" or \"low\"");
  lua_pop(L, 1);
  return priority;
}

static uint32_t timeout_of(lua_State *L, int options) {
  lua_getfield(L, options, "timeout");
  double seconds = lua_isnil(L, -1) ? 0 : lua_tonumber(L, -1);
  bool given = !lua_isnil(L, -1);
  if (given && !(seconds > 0 && seconds <= 4e6))
    misuse(L, "option 'timeout': expected seconds, more than 0 and at most 4000000");
  lua_pop(L, 1);
  return given ? (uint32_t)(seconds * 1000 + 0.999) : 0;
}

static bool flag_of(lua_State *L, int options, const char *name) {
  lua_getfield(L, options, name);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

static int submit(tp_env *env, lua_State *L, tp_lua_pool *p, threadpool_request *q) {
  uint64_t id;
  q->deliver = THREADPOOL_BY_QUEUE;
  q->queue = env->queue;
  q->user_data = (void *)(uintptr_t)p->mark;
  q->credited = true;
  if (threadpool_submit_batch(p->pool, q, 1, &id) != 1) return failed(L, tp_said_code());
  lua_pushnumber(L, (double)id);
  return 1;
}

/* Pushes source and line of who called the Lua function that called us; returns 2, or 0. The source of the last one is
 * kept: to make that text takes as long as the rest. */
static int push_place(tp_env *env, lua_State *L) {
  lua_Debug ar;
  if (!lua_getstack(L, 2, &ar) || !lua_getinfo(L, "lf", &ar)) return 0;
  const void *caller = lua_topointer(L, -1);
  if (ar.currentline <= 0) { /* called from C: pcall(pool.spawn, pool, f) */
    lua_pop(L, 1);
    return 0;
  }
  if (caller == env->caller) {
    lua_pop(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, env->source_ref);
  } else {
    lua_pushvalue(L, -1);
    lua_getinfo(L, ">S", &ar);
    lua_pushstring(L, ar.short_src); /* first: a finalizer may get here */
    env->caller = caller;
    lua_pushvalue(L, -2);
    lua_rawseti(L, LUA_REGISTRYINDEX,
                env->caller_ref); /* it stays, so nobody else is at its address */
    lua_pushvalue(L, -1);
    lua_rawseti(L, LUA_REGISTRYINDEX, env->source_ref);
    lua_remove(L, -2); /* the caller itself */
  }
  lua_pushnumber(L, ar.currentline);
  return 2;
}

/* spawn(pool, options or nil, function, ...) -> id, source, line: who called who called this */
static int env_spawn(lua_State *L) {
  tp_lua_pool *p = open_pool(L, 1);
  if (!p) return failed(L, ERR_SHUTDOWN);
  tp_env *env = tp_env_of(L);
  if (lua_type(L, 3) != LUA_TFUNCTION) luaL_argerror(L, 3, "function expected");
  threadpool_request q = {.opcode = TP_LUA_OPCODE};
  if (!lua_isnil(L, 2)) {
    luaL_checktype(L, 2, LUA_TTABLE);
    q.priority = priority_of(L, 2);
    q.timeout_ms = timeout_of(L, 2);
    if (flag_of(L, 2, "blocking")) q.opcode = TP_LUA_BLOCKING_OPCODE;
  }
  tp_codec *codec =
      tp_codec_begin(&env->codec, L, "argument"); /* but the first one, the function */
  tp_codec_write(codec, L, tp_lua_protos(p->lua), 3, lua_gettop(L));
  q.payload = codec->out.data;
  q.size = codec->out.size;
  int n = submit(env, L, p, &q);
  if (n != 1) return n;
  if (codec->mentions.size) tp_lua_mention(p->lua, (uint64_t)lua_tonumber(L, -1), codec);
  return 1 + push_place(env, L);
}

/* submit(pool, json) -> id */
static int env_submit(lua_State *L) {
  tp_lua_pool *p = open_pool(L, 1);
  if (!p) return failed(L, ERR_SHUTDOWN);
  threadpool_request q = {0};
  q.json = luaL_checklstring(L, 2, &q.length);
  if (q.length == 0) q.length = 1; /* 0 means: up to the zero, which counts here as text */
  return submit(tp_env_of(L), L, p, &q);
}

/* --- what was submitted */

typedef int (*by_id)(threadpool_t *pool, uint64_t id);

static int env_by_id(lua_State *L, by_id f) {
  tp_lua_pool *p = check_pool(L, 1);
  int code = !p->closed ? f(p->pool, (uint64_t)luaL_checknumber(L, 2)) : ERR_SHUTDOWN;
  lua_pushnumber(L, code);
  return 1;
}

/* cancel, detach, status (pool, id) -> code */
static int env_cancel(lua_State *L) {
  return env_by_id(L, threadpool_cancel);
}
static int env_detach(lua_State *L) {
  return env_by_id(L, threadpool_detach);
}
static int env_status(lua_State *L) {
  return env_by_id(L, threadpool_status);
}

/* credit(pool, id, n) */
static int env_credit(lua_State *L) {
  tp_lua_pool *p = check_pool(L, 1);
  if (!p->closed)
    threadpool_credit(p->pool, (uint64_t)luaL_checknumber(L, 2), (uint32_t)luaL_checknumber(L, 3));
  return 0;
}

/* --- results
 *
 * A task is a table. We write: [1] how many values it returned, or its code; [2]... the values, or message and detail;
 * `_parts`: the partial results, [0] being how many there were. */

enum { BATCH = 128 };

/* Arguments of drain: tasks by index; the set of those that are watched; and where those go that have got something. */
enum {
  HANDLES = 1,
  KEPT,
  OUT,
  PARTS,
  FIXED = PARTS
}; /* PARTS: the name of that field, made once */

/* read(env, protos, entry): under pcall. */
static int env_read(lua_State *L) {
  tp_env *env = lua_touserdata(L, 1);
  tp_protos *protos = lua_touserdata(L, 2);
  result_t *r = lua_touserdata(L, 3);
  lua_settop(L, 0);
  return tp_codec_read(&env->codec, L, protos, r->data, r->data_size);
}

/* What the pool of this task was sent. */
static tp_protos *protos_of(lua_State *L, int task) {
  lua_getfield(L, task, "_pool");
  lua_getfield(L, -1, "_core");
  tp_lua_pool *p = lua_touserdata(L, -1);
  lua_pop(L, 2);
  return p ? tp_lua_protos(p->lua) : NULL;
}

/* Pushes the values of an entry; returns how many, or -1 and a message instead. */
static int push_values(tp_env *env, lua_State *L, int task, result_t *r) {
  if (!r->data) return 0;
  double number;
  if ((r->flags & RESULT_LUA) && tp_codec_number(r->data, r->data_size, &number)) {
    lua_pushnumber(L, number);
    return 1;
  }
  if (!(r->flags & RESULT_LUA)) {
    lua_pushlstring(L, r->data, r->data_size);
    return 1;
  }
  if (tp_codec_simple(r->data, r->data_size))
    return tp_codec_read(&env->codec, L, NULL, r->data, r->data_size);
  int top = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushlightuserdata(L, env);
  lua_pushlightuserdata(L, protos_of(L, task));
  lua_pushlightuserdata(L, r);
  return lua_pcall(L, 3, -1, 0) == LUA_OK ? lua_gettop(L) - top : -1;
}

/* The task's next partial result. True: its first. */
static bool add_partial(tp_env *env, lua_State *L, int task, result_t *r) {
  int parts = task + 1;
  lua_pushvalue(L, PARTS);
  lua_rawget(L, task);
  bool first = lua_isnil(L, parts);
  if (first) {
    lua_newtable(L);
    lua_replace(L, parts);
    lua_pushvalue(L, parts);
    lua_setfield(L, task, "_parts");
  }
  lua_rawgeti(L, parts, 0);
  int n = (int)lua_tonumber(L, -1) + 1;
  if (push_values(env, L, task, r) == 0) lua_pushlstring(L, "", 0);
  lua_rawseti(L, parts, n);
  lua_pushnumber(L, n);
  lua_rawseti(L, parts, 0);
  return first;
}

static void set_error(lua_State *L, int task, int code, const char *message) {
  lua_pushnumber(L, code);
  lua_rawseti(L, task, 1);
  lua_pushstring(L, message);
  lua_rawseti(L, task, 2);
}

static void finish(tp_env *env, lua_State *L, int task, result_t *r) {
  int before = task, n = push_values(env, L, task, r);
  if (n < 0) {
    const char *why = lua_tostring(L, -1);
    set_error(L, task, ERR_LUA, why ? why : "its result cannot be read");
    return;
  }
  int first = 2;
  if (r->status < 0) {
    set_error(L, task, r->status, r->error_msg);
    first = 3;
  } else {
    lua_pushnumber(L, n);
    lua_rawseti(L, task, 1);
    if (n == 1) lua_rawseti(L, task, 2);
    if (n <= 1) return;
  }
  for (int i = n; i > 0; i--) {
    lua_pushvalue(L, before + i);
    lua_rawseti(L, task, first + i - 1);
  }
}

static bool is_watched(lua_State *L, int task) {
  lua_pushvalue(L, task);
  lua_rawget(L, KEPT);
  bool watched = !lua_isnil(L, -1);
  lua_settop(L, task);
  return watched;
}

static int add_out(lua_State *L, int n, double value) {
  lua_pushnumber(L, value);
  lua_rawseti(L, OUT, n + 1);
  return n + 1;
}

/* An index is an int, unless more than thirty pools were made. */
static void push_handle(lua_State *L, uint64_t index) {
  if (index <= INT_MAX) {
    lua_rawgeti(L, HANDLES, (int)index);
  } else {
    lua_pushnumber(L, (double)index);
    lua_rawget(L, HANDLES);
  }
}

static void drop_handle(lua_State *L, uint64_t index) {
  if (index > INT_MAX) lua_pushnumber(L, (double)index);
  lua_pushnil(L);
  if (index <= INT_MAX)
    lua_rawseti(L, HANDLES, (int)index);
  else
    lua_rawset(L, HANDLES);
}

/* One entry to its task, which goes to OUT as its n-th if somebody watches it or this is its first partial result. A
 * partial result whose task nobody has: its id and its pool's base go there. Returns n. */
static int dispatch(tp_env *env, lua_State *L, int n, result_t *r) {
  /* Pools count their records each for itself. */
  uint64_t base = ((tp_entry *)r)->mark * TP_SLAB_GENERATION;
  uint64_t index = (r->task_id & (TP_SLAB_GENERATION - 1)) + base;
  enum { task = FIXED + 1 };
  push_handle(L, index);
  bool known = !lua_isnil(L, task), told;
  if (r->flags & TP_RESULT_NOTICE) {
    told = known && tp_channel_notice(L, task, r->task_id) && is_watched(L, task);
  } else if (!known) {
    if (r->flags & RESULT_FINAL) return n;
    return add_out(L, add_out(L, n, (double)r->task_id), (double)base);
  } else if (r->flags & RESULT_FINAL) {
    drop_handle(L, index);
    finish(env, L, task, r);
    told = is_watched(L, task);
  } else {
    told = add_partial(env, L, task, r);
    lua_settop(L, task);
    told = told || is_watched(L, task);
  }
  lua_settop(L, task);
  if (told) lua_rawseti(L, OUT, ++n);
  return n;
}

/* drain(handles, kept, out, n) -> how many are in out, which had n: see dispatch. */
static int env_drain(lua_State *L) {
  tp_env *env = tp_env_of(L);
  result_t *batch[BATCH];
  int n = (int)lua_tonumber(L, 4);
  lua_settop(L, OUT);
  luaL_checkstack(L, 40, NULL);
  lua_pushstring(L, "_parts");
  while (tp_completions_some(env->queue)) {
    size_t got = tp_completions_take(env->queue, batch, BATCH);
    for (size_t i = 0; i < got; i++) {
      n = dispatch(env, L, n, batch[i]);
      lua_settop(L, FIXED);
      threadpool_result_free(batch[i]);
    }
    if (got < BATCH) break;
  }
  lua_pushnumber(L, n);
  return 1;
}

/* --- waiting */

/* Whether an error is to be raised at the next instruction: so do luajit's handler of SIGINT, and a stop. */
static bool is_interrupted(lua_State *L) {
  return (lua_gethookmask(L) & LUA_MASKCOUNT) && lua_gethookcount(L) == 1;
}

/* A signal ends a wait that has begun, but one that came just before it does not: so the first wait is short, and each
 * one after it twice as long. */
static int wait_in_slices(lua_State *L, uint64_t deadline) {
  enum { FIRST_MS = 10, LONGEST_MS = 1000 };
  threadpool_queue *queue = tp_env_of(L)->queue;
  for (uint64_t ms = FIRST_MS;; ms = ms * 2 < LONGEST_MS ? ms * 2 : LONGEST_MS) {
    uint64_t until = tp_now_ns() + ms * TP_NS_PER_MS;
    int outcome = tp_completions_wait(queue, until < deadline ? until : deadline);
    if (outcome != 0 || until >= deadline) return outcome;
    if (is_interrupted(L)) return ERR_BUSY;
  }
}

/* wait(seconds or nil) -> 1 there is something, 0 the time is over, -13 a signal came: return to Lua, which may have been
 * asked to raise an error. A worker gives its seat away first. */
static int env_wait(lua_State *L) {
  uint64_t deadline = UINT64_MAX;
  if (!lua_isnoneornil(L, 1)) {
    double seconds = luaL_checknumber(L, 1);
    if (seconds < 0 || seconds != seconds) seconds = 0;
    if (seconds < 1e9) deadline = tp_now_ns() + (uint64_t)(seconds * 1e9);
  }
  int error = tp_self() ? tp_worker_leave() : 0;
  if (error) return luaL_error(L, "%s", tp_error_text(error));
  lua_pushnumber(L, wait_in_slices(L, deadline));
  return 1;
}

/* forked(pool) -> whether it is one of a parent of this process: its tasks do not end here */
static int env_forked(lua_State *L) {
  lua_pushboolean(L, tp_forked(check_pool(L, 1)->pool->made_in));
  return 1;
}

/* now() -> seconds of the monotonic clock */
static int env_now(lua_State *L) {
  lua_pushnumber(L, (double)tp_now_ns() / 1e9);
  return 1;
}

/* --- about pools */

static int env_pending(lua_State *L) {
  lua_pushnumber(L, threadpool_pending(tp_env_pool(L, 1)->pool));
  return 1;
}

/* base(pool): what is added to the indexes of its tasks */
static int env_base(lua_State *L) {
  lua_pushnumber(L, (double)tp_env_pool(L, 1)->mark * (double)TP_SLAB_GENERATION);
  return 1;
}

static int env_workers(lua_State *L) {
  lua_pushnumber(L, threadpool_workers(tp_env_pool(L, 1)->pool));
  return 1;
}

/* pointer(pool) -> its address, for the FFI; also of one that is closed: calls say so then */
static int env_pointer(lua_State *L) {
  lua_pushlightuserdata(L, check_pool(L, 1)->pool);
  return 1;
}

/* stats(pool, worker or nil) -> a table of counters; the worker is counted from 1 */
static int env_stats(lua_State *L) {
  tp_lua_pool *p = tp_env_pool(L, 1);
  int index = lua_isnoneornil(L, 2) ? -1 : (int)luaL_checknumber(L, 2) - 1;
  threadpool_counters c;
  if (index < -1 || threadpool_stats(p->pool, index, &c) != 0)
    misuse(L, "stats: there is no such worker");
  lua_newtable(L);
#define FIELD(name, text)                                                                          \
  lua_pushnumber(L, (double)c.name);                                                               \
  lua_setfield(L, -2, #name);
  THREADPOOL_COUNTERS(FIELD)
#undef FIELD
  return 1;
}

/* --- about errors */

static int env_error_name(lua_State *L) {
  lua_pushstring(L, tp_error_name((int)luaL_checknumber(L, 1)));
  return 1;
}

static int env_error_text(lua_State *L) {
  lua_pushstring(L, tp_error_text((int)luaL_checknumber(L, 1)));
  return 1;
}

/* --- the state's part */

void tp_env_open(tp_env *env, lua_State *L, void (*notify)(void *arg), void *arg) {
  static const struct {
    const char *name;
    lua_CFunction f;
  } functions[] = {{"spawn", env_spawn},           {"submit", env_submit},
                   {"cancel", env_cancel},         {"detach", env_detach},
                   {"status", env_status},         {"credit", env_credit},
                   {"pending", env_pending},       {"base", env_base},
                   {"workers", env_workers},       {"pointer", env_pointer},
                   {"stats", env_stats},           {"error_name", env_error_name},
                   {"error_text", env_error_text}, {"wait", env_wait},
                   {"forked", env_forked},         {"now", env_now}};
  env->queue = tp_completions_new(notify, arg);
  if (!env->queue) luaL_error(L, "not enough memory");
  tp_codec_open(&env->codec, L);
  tp_codec_open(&env->channel_codec, L);
  lua_pushboolean(L, 0);
  env->caller_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushboolean(L, 0);
  env->source_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    tp_env_add(env, L, functions[i].name, functions[i].f);
  lua_pushlightuserdata(L, env);
  lua_pushcfunction(L, env_read);
  lua_pushcclosure(L, env_drain, 2);
  lua_setfield(L, -2, "drain");
#define CODE(name, value, text)                                                                    \
  lua_pushnumber(L, value);                                                                        \
  lua_setfield(L, -2, #name);
  THREADPOOL_ERRORS(CODE)
#undef CODE
  lua_pushnumber(L, (double)TP_SLAB_GENERATION);
  lua_setfield(L, -2, "INDEX");
}

void tp_env_free(tp_env *env) {
  tp_codec_free(&env->codec);
  tp_codec_free(&env->channel_codec);
  env->queue = NULL;
}
