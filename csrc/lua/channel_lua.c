#include "lua/channel_lua.h"

#include "base/error.h"
#include "lua/vm.h"

static const char KIND[] = "threadpool.core.channel";

typedef struct tp_channel_handle {
  const char *kind;    /* constant: what it is known by */
  tp_channel *channel; /* with a reference; NULL: given back */
  tp_env *env;
  struct tp_channel_handle *next, *prev; /* of the state */
} tp_channel_handle;

/* Of the registry: the class of handles, that of waits, the handles of this state by address (weak), its env. */
static const char WAIT[] = "threadpool.core.wait", HANDLES[] = "threadpool.core.channels",
                  ENV[] = "threadpool.core.channel_env";

/* --- handles */

static tp_channel_handle *handle_at(lua_State *L, int index) {
  tp_channel_handle *h = lua_touserdata(L, index);
  bool is_one =
      lua_type(L, index) == LUA_TUSERDATA && lua_objlen(L, index) == sizeof *h && h->kind == KIND;
  return is_one ? h : NULL;
}

tp_channel *tp_channel_at(lua_State *L, int index) {
  tp_channel_handle *h = handle_at(L, index);
  return h ? h->channel : NULL;
}

static tp_channel *check_channel(lua_State *L, int arg) {
  tp_channel *c = tp_channel_at(L, arg);
  if (!c) luaL_argerror(L, arg, "a channel expected");
  return c;
}

static void drop_handle(tp_channel_handle *h) {
  tp_channel *c = h->channel;
  if (!c) return;
  h->channel = NULL;
  if (h->prev)
    h->prev->next = h->next;
  else
    h->env->handles = h->next;
  if (h->next) h->next->prev = h->prev;
  tp_channel_unref(c);
}

static int collect_handle(lua_State *L) {
  drop_handle(lua_touserdata(L, 1));
  return 0;
}

void tp_channel_forget(tp_env *env) {
  while (env->handles) drop_handle(env->handles);
  for (tp_wait *w = env->all_waits; w; w = w->next_of_all) {
    tp_wait_leave(w, false);
    tp_wait_clear(w);
  }
  env->all_waits = NULL;
}

/* Pushes an empty handle, with its class. */
static tp_channel_handle *new_handle(lua_State *L) {
  luaL_checkstack(L, 8, NULL);
  lua_getfield(L, LUA_REGISTRYINDEX, ENV);
  tp_env *env = lua_touserdata(L, -1);
  lua_pop(L, 1);
  tp_channel_handle *h = lua_newuserdata(L, sizeof *h);
  *h = (tp_channel_handle){.kind = KIND, .env = env};
  luaL_newmetatable(L, KIND);
  lua_setmetatable(L, -2);
  return h;
}

/* The handle on top of the stack gets c, with the caller's reference. */
static void fill_handle(lua_State *L, tp_channel_handle *h, tp_channel *c) {
  h->channel = c;
  h->next = h->env->handles;
  if (h->next) h->next->prev = h;
  h->env->handles = h;
  lua_getfield(L, LUA_REGISTRYINDEX, HANDLES);
  lua_pushlightuserdata(L, c);
  lua_pushvalue(L, -3);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* Its methods are in Lua. */
static void load_class(lua_State *L) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "threadpool.channel");
  lua_call(L, 1, 0);
}

void tp_channel_push(lua_State *L, tp_mention m) {
  luaL_checkstack(L, 8, NULL);
  lua_getfield(L, LUA_REGISTRYINDEX, HANDLES);
  lua_pushlightuserdata(L, m.channel);
  lua_rawget(L, -2);
  lua_remove(L, -2);
  tp_channel_handle *h = handle_at(L, -1);
  /* A handle has a reference, so its channel's serial is still the one that it had. */
  if (h && h->channel && tp_channel_mention(h->channel).serial == m.serial) return;
  lua_pop(L, 1);
  load_class(L);
  h = new_handle(L);
  tp_channel *c = tp_channel_find(m);
  if (!c) luaL_error(L, "a channel in this message is gone: nobody had it any more when it came");
  fill_handle(L, h, c);
}

/* channel_new(limit) -> handle */
static int core_new(lua_State *L) {
  double limit = luaL_checknumber(L, 1);
  tp_channel_handle *h = new_handle(L);
  tp_channel *c = tp_channel_new((size_t)limit);
  if (!c) return luaL_error(L, "not enough memory");
  fill_handle(L, h, c);
  return 1;
}

/* --- waits */

static void unlink_wait(tp_env *env, tp_wait *w) {
  tp_lock_acquire(&env->waits_lock);
  if (w->of) {
    if (w->of_prev)
      w->of_prev->of_next = w->of_next;
    else
      w->of->first = w->of_next;
    if (w->of_next) w->of_next->of_prev = w->of_prev;
    w->of = NULL;
  }
  tp_lock_release(&env->waits_lock);
}

static void link_wait(tp_env *env, tp_wait *w) {
  if (!env->waits) return;
  tp_lock_acquire(&env->waits_lock);
  w->of = env->waits;
  w->of_prev = NULL;
  w->of_next = w->of->first;
  if (w->of_next) w->of_next->of_prev = w;
  w->of->first = w;
  tp_lock_release(&env->waits_lock);
}

/* Under the lock of the lists: so the state does not collect a wait meanwhile. */
void tp_waits_end(tp_env *env, tp_waits *waits) {
  tp_lock_acquire(&env->waits_lock);
  for (tp_wait *w; (w = waits->first);) {
    waits->first = w->of_next;
    if (w->of_next) w->of_next->of_prev = NULL;
    w->of = NULL;
    tp_wait_leave(w, true);
  }
  tp_lock_release(&env->waits_lock);
}

static int collect_wait(lua_State *L) {
  tp_wait *w = lua_touserdata(L, 1);
  tp_env *env = tp_env_of(L);
  if (w->prev_of_all)
    w->prev_of_all->next_of_all = w->next_of_all;
  else
    env->all_waits = w->next_of_all;
  if (w->next_of_all) w->next_of_all->prev_of_all = w->prev_of_all;
  unlink_wait(env, w);
  tp_wait_leave(w, false);
  tp_wait_clear(w);
  return 0;
}

static tp_wait *check_wait(lua_State *L, int arg) {
  tp_wait *w = luaL_checkudata(L, arg, WAIT);
  return w;
}

/* channel_leave(wait, tell) -> whether it still waited, or had not taken what it got */
static int core_leave(lua_State *L) {
  tp_wait *w = check_wait(L, 1);
  bool say = lua_toboolean(L, 2);
  lua_pushboolean(L, tp_wait_leave(w, say));
  if (!say) {
    unlink_wait(tp_env_of(L), w);
    tp_wait_clear(w);
  }
  return 1;
}

/* Pushes a wait with all that it needs, not parked yet. */
static tp_wait *new_wait(lua_State *L, tp_channel *c, int id) {
  tp_wait *w = lua_newuserdata(L, sizeof *w);
  *w = (tp_wait){.stage = TP_WAIT_LEFT,
                 .queue = tp_env_of(L)->queue,
                 .id = (uint64_t)lua_tonumber(L, id),
                 .notice = tp_get(sizeof(tp_entry))};
  luaL_newmetatable(L, WAIT);
  lua_setmetatable(L, -2);
  if (w->notice) w->channel = c;
  tp_env *env = tp_env_of(L);
  w->next_of_all = env->all_waits;
  if (w->next_of_all) w->next_of_all->prev_of_all = w;
  env->all_waits = w;
  return w;
}

/* It is not parked, and has no reference. */
static void unmake_wait(tp_wait *w) {
  w->channel = NULL;
  tp_put(w->notice);
  w->notice = NULL;
}

/* --- messages */

/* read(env, message): under pcall. */
static int core_read(lua_State *L) {
  tp_env *env = lua_touserdata(L, 1);
  const tp_message *m = lua_touserdata(L, 2);
  lua_settop(L, 0);
  return tp_codec_read(&env->channel_codec, L, NULL, tp_message_data(m), m->size);
}

/* Pushes the value of a message, and frees that; false: pushes why not. */
static bool push_message(tp_env *env, lua_State *L, tp_message *m) {
  bool good = true;
  luaL_checkstack(L, 8, NULL);
  if (tp_codec_simple(tp_message_data(m), m->size)) {
    tp_codec_read(&env->channel_codec, L, NULL, tp_message_data(m), m->size);
  } else {
    lua_rawgeti(L, LUA_REGISTRYINDEX, env->channel_read);
    lua_pushlightuserdata(L, env);
    lua_pushlightuserdata(L, m);
    good = lua_pcall(L, 2, 1, 0) == LUA_OK;
  }
  tp_message_free(m);
  return good;
}

/* channel_send(channel, value, id or nil) -> code; with an id: a wait, if it has to */
static int core_send(lua_State *L) {
  tp_env *env = tp_env_of(L);
  tp_channel *c = check_channel(L, 1);
  lua_settop(L, 3);
  tp_codec *codec = tp_codec_begin(&env->channel_codec, L, "value");
  tp_codec_write(codec, L, NULL, 2, 2);
  tp_message *m = tp_message_new(c, &codec->out, &codec->mentions);
  if (!m) return luaL_error(L, "not enough memory");
  int code = tp_channel_send(c, m);
  if (code == ERR_QUEUE_FULL && !lua_isnil(L, 3)) {
    tp_wait *w = new_wait(L, c, 3);
    w->sends = true;
    w->message = m;
    code = w->notice ? tp_channel_park(w) : ERR_MALLOC_FAILED;
    if (code == TP_PARKED) {
      link_wait(env, w);
      return 1;
    }
    w->message = NULL;
    unmake_wait(w);
  }
  if (code < 0) tp_message_free(m);
  lua_pushnumber(L, code);
  return 1;
}

/* channel_receive(channel, id or nil) -> code, value or message; with an id: a wait, if it has to */
static int core_receive(lua_State *L) {
  tp_env *env = tp_env_of(L);
  tp_channel *c = check_channel(L, 1);
  tp_message *m = NULL;
  lua_settop(L, 2);
  int code = tp_channel_receive(c, &m);
  if (code == ERR_BUSY && !lua_isnil(L, 2)) {
    tp_wait *w = new_wait(L, c, 2);
    code = w->notice ? tp_channel_park(w) : ERR_MALLOC_FAILED;
    if (code == TP_PARKED) {
      link_wait(env, w);
      return 1;
    }
    m = w->message;
    w->message = NULL;
    unmake_wait(w);
  }
  lua_pushnumber(L, code);
  if (code < 0) return 1;
  if (!push_message(env, L, m)) {
    lua_pushnumber(L, ERR_LUA);
    lua_replace(L, -3);
  }
  return 2;
}

/* channel_take(wait) -> code, value or message; ERR_BUSY: it has not been told yet */
static int core_take(lua_State *L) {
  tp_env *env = tp_env_of(L);
  tp_wait *w = check_wait(L, 1);
  tp_message *m;
  int code = tp_wait_take(w, &m);
  lua_pushnumber(L, code);
  if (code == ERR_BUSY) return 1;
  unlink_wait(env, w);
  if (code < 0 || w->sends) {
    tp_wait_clear(w);
    return 1;
  }
  if (!push_message(env, L, m)) {
    lua_pushnumber(L, ERR_LUA);
    lua_replace(L, -3);
  }
  tp_wait_clear(w); /* now: what the message mentions without a reference is this channel */
  return 2;
}

bool tp_channel_notice(lua_State *L, int task, uint64_t id) {
  lua_getfield(L, task, "_wait");
  const tp_wait *w = lua_touserdata(L, -1);
  bool good = w && w->id == id;
  lua_settop(L, task);
  return good;
}

/* --- about a channel */

static int core_close(lua_State *L) {
  lua_pushboolean(L, tp_channel_close(check_channel(L, 1)));
  return 1;
}

static int core_closed(lua_State *L) {
  lua_pushboolean(L, tp_channel_is_closed(check_channel(L, 1)));
  return 1;
}

static int core_count(lua_State *L) {
  lua_pushnumber(L, (double)tp_channel_count(check_channel(L, 1)));
  return 1;
}

static int core_limit(lua_State *L) {
  lua_pushnumber(L, (double)tp_channel_limit(check_channel(L, 1)));
  return 1;
}

/* channel_alive() -> how many there are in the process */
static int core_alive(lua_State *L) {
  lua_pushnumber(L, (double)tp_channel_alive());
  return 1;
}

/* is_channel(value) */
static int core_is(lua_State *L) {
  lua_pushboolean(L, tp_channel_at(L, 1) != NULL);
  return 1;
}

/* --- requests that mention channels */

void tp_lua_mention(tp_lua *lua, uint64_t id, const tp_codec *codec) {
  if (!tp_enter(lua->pool)) return; /* it is over: nobody reads what was sent */
  tp_mentions_keep(&lua->mentions, lua->pool->requests, id, &codec->mentions);
  tp_leave(lua->pool);
}

/* --- the state's part */

static void open_class(tp_env *env, lua_State *L, const char *name, lua_CFunction collect) {
  luaL_newmetatable(L, name);
  tp_env_add(env, L, "__gc", collect);
}

void tp_channel_open(tp_env *env, lua_State *L) {
  static const struct {
    const char *name;
    lua_CFunction f;
  } functions[] = {{"channel_new", core_new},
                   {"channel_send", core_send},
                   {"channel_receive", core_receive},
                   {"channel_leave", core_leave},
                   {"channel_take", core_take},
                   {"channel_close", core_close},
                   {"channel_closed", core_closed},
                   {"channel_count", core_count},
                   {"channel_limit", core_limit},
                   {"channel_alive", core_alive},
                   {"is_channel", core_is}};
  luaL_checkstack(L, 8, NULL);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    tp_env_add(env, L, functions[i].name, functions[i].f);
  open_class(env, L, WAIT, collect_wait);
  lua_pop(L, 1);
  open_class(env, L, KIND, collect_handle);
  lua_setfield(L, -2, "channel_class");
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, "v");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, HANDLES);
  lua_pushlightuserdata(L, env);
  lua_setfield(L, LUA_REGISTRYINDEX, ENV);
  lua_pushcfunction(L, core_read);
  env->channel_read = luaL_ref(L, LUA_REGISTRYINDEX);
}
