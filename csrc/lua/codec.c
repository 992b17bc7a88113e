#include "lua/codec.h"

#include <stdio.h>

#include "lua/channel_lua.h"

enum {
  NIL,
  FALSE_,
  TRUE_,
  NUMBER,
  STRING,
  POINTER,
  TABLE,
  FUNCTION,
  PLAIN,
  SAME,
  NAMED,
  PACKED,
  CHANNEL,
  END
};
enum { NESTED_MOST = 16 };                /* messages begun in the middle of others */
static const uint32_t SITE = 1u << 31;    /* in `origins` */
static const uint32_t OBJECTS = 1u << 31; /* in a message's count */

/* Of the state:
 *   names    what a loaded module is, or has: its name, or module and key with a zero between; false: a table that
 *            is none (weak keys)
 *   numbers  functions that were sent: the number of their bytecode (weak keys)
 *   loaded   numbers: the function, if it has no upvalues, so that one serves all
 * Numbers are those of a pool, so there are two such tables for each:
 *   owners   what the pool is known by: a table with both (weak values) */
static void push_weak(lua_State *L, const char *mode) {
  lua_newtable(L);
  lua_createtable(L, 0, 1);
  lua_pushstring(L, mode);
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
}

void tp_codec_free(tp_codec *c) {
  if (c->inner) {
    tp_codec_free(c->inner);
    tp_put(c->inner);
  }
  if (c->nested) {
    tp_codec_free(c->nested);
    tp_put(c->nested);
  }
  tp_bytes_free(&c->out);
  tp_bytes_free(&c->mentions);
  tp_put(c->slots);
  tp_put(c->origins);
  tp_put(c->sites);
  *c = (tp_codec){0};
}

/* From now on `numbers` and `loaded` are those of this pool. What was known about the one before is kept until the
 * collector comes: a program that uses two by turns sends no function twice. */
static void change_owner(tp_codec *c, lua_State *L, const void *owner) {
  luaL_checkstack(L, 6, "values within values");
  int top = lua_gettop(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->owners);
  lua_pushlightuserdata(L, (void *)owner);
  lua_rawget(L, top + 1);
  if (lua_isnil(L, -1)) {
    lua_createtable(L, 2, 0);
    push_weak(L, "k");
    lua_rawseti(L, -2, 1);
    lua_newtable(L);
    lua_rawseti(L, -2, 2);
    lua_pushlightuserdata(L, (void *)owner);
    lua_pushvalue(L, -2);
    lua_rawset(L, top + 1);
  }
  int both = lua_gettop(L);
  lua_rawgeti(L, both, 1);
  lua_rawseti(L, LUA_REGISTRYINDEX, c->numbers);
  lua_rawgeti(L, both, 2);
  lua_rawseti(L, LUA_REGISTRYINDEX, c->loaded);
  lua_settop(L, top);
  c->last = NULL;
  c->read_number = 0;
  c->owner = owner;
}

/* Whatever code of the program's has run: a result of another pool may have been read. */
static void use_owner(tp_codec *c, lua_State *L, const void *owner) {
  if (c->owner != owner) change_owner(c, L, owner);
}

static void open_refs(tp_codec *c, lua_State *L) {
  lua_pushboolean(L, 0);
  c->numbers = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushboolean(L, 0);
  c->loaded = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushboolean(L, 0);
  c->last_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  lua_pushboolean(L, 0);
  c->read_ref = luaL_ref(L, LUA_REGISTRYINDEX);
  change_owner(c, L, NULL);
}

void tp_codec_open(tp_codec *c, lua_State *L) {
  luaL_checkstack(L, 4, "values within values");
  push_weak(L, "k");
  c->names = luaL_ref(L, LUA_REGISTRYINDEX);
  push_weak(L, "v");
  c->owners = luaL_ref(L, LUA_REGISTRYINDEX);
  open_refs(c, L);
}

static int no_memory(lua_State *L) {
  return luaL_error(L, "not enough memory");
}

/* Another one of the same state, at *place; freed with c. */
static tp_codec *another(const tp_codec *c, lua_State *L, tp_codec **place) {
  tp_codec *fresh = *place;
  if (fresh) return fresh;
  luaL_checkstack(L, 6, "values within values");
  fresh = tp_get(sizeof *fresh);
  if (!fresh) {
    no_memory(L);
    return NULL; /* not reached */
  }
  *fresh = (tp_codec){.names = c->names, .owners = c->owners};
  open_refs(fresh, L); /* out of memory: it is lost */
  *place = fresh;
  return fresh;
}

static _Thread_local char this_thread __attribute__((tls_model("initial-exec")));

/* Whether a write goes on in c: it is in a frame below ours then. One that has raised an error may look so. */
static bool is_writing(const tp_codec *c) {
  return c->writer == &this_thread && c->frame > (uintptr_t)__builtin_frame_address(0);
}

tp_codec *tp_codec_begin(tp_codec *c, lua_State *L, const char *what) {
  for (int depth = 0; is_writing(c); c = another(c, L, &c->nested))
    if (++depth > NESTED_MOST) luaL_error(L, "too many messages are sent while others are written");
  tp_bytes_clear(&c->out);
  c->what = what;
  return c;
}

/* --- writing */

typedef struct writer {
  tp_codec *c;
  lua_State *L;
  tp_protos *protos;
  const void *owner;
  int objects;     /* on the stack: the objects by number, once there is one */
  uint32_t origin; /* of what is being written */
} writer;

static void put_u32(tp_bytes *b, uint32_t n) {
  tp_bytes_put(b, &n, sizeof n);
}

static void put_text(tp_bytes *b, const char *text, size_t size) {
  put_u32(b, (uint32_t)size);
  tp_bytes_put(b, text, size);
}

/* What is being written, for a message; pushes it. */
static const char *push_place(writer *w) {
  tp_codec *c = w->c;
  int n = (int)w->origin;
  if (!(w->origin & SITE) &&
      strcmp(c->what, "argument") == 0) { /* of a spawn: the function first */
    if (n == 1) return lua_pushfstring(w->L, "the function");
    n--;
  }
  if (!(w->origin & SITE)) return lua_pushfstring(w->L, "%s %d", c->what, n);
  tp_origin *site = &c->sites[w->origin & ~SITE];
  return lua_pushfstring(w->L, "upvalue '%s' of the function that begins at %s:%d", site->name,
                         site->source, (int)site->line);
}

/* Raises what is on top of the stack, at the line that called the Lua function that called ours. */
static int raise_there(lua_State *L) {
  luaL_where(L, 2);
  lua_insert(L, -2);
  lua_concat(L, 2);
  return lua_error(L);
}

static int refuse(writer *w, const char *thing, const char *remedy) {
  const char *place = push_place(w);
  lua_pushfstring(w->L, "%s: %s cannot be sent to another thread%s%s", place, thing,
                  *remedy ? ": " : "", remedy);
  return raise_there(w->L);
}

/* --- objects by address */

static uint32_t slot_of(const void *object, uint32_t count) {
  uint64_t h = (uint64_t)(uintptr_t)object * 0x9E3779B97F4A7C15ull;
  return (uint32_t)(h >> 32) & (count - 1);
}

/* The slot that has it, or the free one where it belongs. There is one: at most half are in use. */
static tp_codec_slot *find_slot(tp_codec *c, const void *object) {
  uint32_t i = slot_of(object, c->slot_count);
  while (c->slots[i].round == c->round && c->slots[i].object != object)
    i = (i + 1) & (c->slot_count - 1);
  return &c->slots[i];
}

static bool grow_slots(tp_codec *c) {
  uint32_t before = c->slot_count;
  tp_codec_slot *old = c->slots;
  uint32_t count = before ? before * 2 : 64;
  tp_codec_slot *slots = tp_get(count * sizeof *slots);
  if (!slots) return false;
  memset(slots, 0, count * sizeof *slots);
  c->slots = slots;
  c->slot_count = count;
  for (uint32_t i = 0; i < before; i++)
    if (old[i].round == c->round) *find_slot(c, old[i].object) = old[i];
  tp_put(old);
  return true;
}

/* An array of *room elements, made twice as large. */
static void *grow(writer *w, void *array, uint32_t *room, size_t size) {
  uint32_t more = *room ? *room * 2 : 64;
  void *larger = tp_resize(array, more * size);
  if (!larger) no_memory(w->L);
  *room = more;
  return larger;
}

/* The number of the object at `index`, which gets one if it is new. */
static uint32_t number_of(writer *w, int index, bool *is_new) {
  tp_codec *c = w->c;
  const void *object = lua_topointer(w->L, index);
  if (c->objects * 2 >= c->slot_count && !grow_slots(c)) no_memory(w->L);
  tp_codec_slot *slot = find_slot(c, object);
  *is_new = slot->round != c->round;
  if (!*is_new) return slot->number;
  if (c->objects == c->origin_room)
    c->origins = grow(w, c->origins, &c->origin_room, sizeof *c->origins);
  c->origins[c->objects] = w->origin;
  *slot = (tp_codec_slot){object, ++c->objects, c->round};
  if (c->objects == 1) {
    lua_newtable(w->L);
    lua_replace(w->L, w->objects);
  }
  lua_pushvalue(w->L, index);
  lua_rawseti(w->L, w->objects, (int)c->objects);
  return c->objects;
}

/* --- names */

static void add_name(lua_State *L, int names, int value, const char *module, const char *key) {
  lua_pushvalue(L, value);
  lua_rawget(L, names);
  bool known = !lua_isnil(L, -1);
  lua_pop(L, 1);
  if (known) return;
  lua_pushvalue(L, value);
  char name[256];
  int n = snprintf(name, sizeof name, "%s%c%s", module, '\0', key ? key : "");
  if (n >= (int)sizeof name) n = 0;
  lua_pushlstring(L, name, key ? (size_t)n : strlen(module));
  lua_rawset(L, names);
}

/* The loaded modules, and the functions and userdata in them. Of the globals only what Lua itself has. */
static void learn_names(lua_State *L, int names) {
  luaL_checkstack(L, 12, "values within values");
  lua_getglobal(L, "package");
  if (lua_istable(L, -1)) lua_getfield(L, -1, "loaded");
  int loaded = lua_gettop(L);
  if (!lua_istable(L, loaded)) luaL_error(L, "package.loaded is gone");
  for (lua_pushnil(L); lua_next(L, loaded); lua_pop(L, 1)) {
    if (lua_type(L, -2) != LUA_TSTRING || !lua_istable(L, -1)) continue;
    int module = lua_gettop(L);
    const char *name = lua_tostring(L, -2);
    bool global = strcmp(name, "_G") == 0;
    add_name(L, names, module, name, NULL);
    for (lua_pushnil(L); lua_next(L, module); lua_pop(L, 1)) {
      int type = lua_type(L, -1);
      if (lua_type(L, -2) == LUA_TSTRING &&
          (lua_iscfunction(L, -1) || (!global && (type == LUA_TFUNCTION || type == LUA_TUSERDATA))))
        add_name(L, names, lua_gettop(L), name, lua_tostring(L, -2));
    }
  }
  lua_pop(L, 2);
}

/* Whether `names` holds the modules that were loaded when it was looked at last; not if they were loaded again since, as
 * busted does. */
static bool has_learned(const tp_codec *c, lua_State *L, int names) {
  if (!c->learned) return false;
  int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  lua_getfield(L, -1, "threadpool");
  bool known = !lua_istable(L, -1);
  if (!known) {
    lua_rawget(L, names);
    known = !lua_isnil(L, -1);
  }
  lua_settop(L, top);
  return known;
}

/* Write the value at `index` by its name; false: it has none. What is a plain table, or was asked for when the modules
 * were known already and is written in Lua, is not looked for again: that takes as long as a hundred sends. */
static bool write_named(writer *w, int index) {
  lua_State *L = w->L;
  tp_codec *c = w->c;
  int type = lua_type(L, index);
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->names);
  int names = lua_gettop(L);
  lua_pushvalue(L, index);
  lua_rawget(L, names);
  if (lua_isnil(L, -1) &&
      (type != LUA_TFUNCTION || lua_iscfunction(L, index) || !has_learned(c, L, names))) {
    c->learned = true;
    learn_names(L, names);
    lua_pushvalue(L, index);
    lua_rawget(L, names);
    if (lua_isnil(L, -1) && type == LUA_TTABLE) {
      lua_pushvalue(L, index);
      lua_pushboolean(L, 0);
      lua_rawset(L, names);
    }
  }
  size_t size;
  const char *name = lua_tolstring(L, -1, &size);
  if (name) {
    tp_bytes_char(&c->out, NAMED);
    put_text(&c->out, name, size);
  }
  lua_settop(L, names - 1);
  return name != NULL;
}

/* --- functions */

static int append(lua_State *L, const void *p, size_t size, void *out) {
  (void)L;
  tp_bytes_put(out, p, size);
  return 0;
}

/* Writes 0, size and bytecode, or the number if it gets one; returns that. */
static uint32_t write_bytecode(writer *w, int index) {
  lua_State *L = w->L;
  tp_bytes *out = &w->c->out;
  size_t at = out->size;
  put_u32(out, 0);
  put_u32(out, 0);
  lua_pushvalue(L, index);
  int error = lua_dump(L, append, out);
  lua_pop(L, 1);
  if (error) refuse(w, "a function without bytecode", "");
  if (out->failed) no_memory(L);
  uint32_t size = (uint32_t)(out->size - at - 8);
  uint32_t number = w->protos ? tp_proto_number(w->protos, out->data + at + 8, size) : 0;
  memcpy(out->data + at, &number, sizeof number);
  memcpy(out->data + at + 4, &size, sizeof size);
  if (number) out->size = at + 4;
  return number;
}

static void write_number(tp_bytes *out, char tag, uint32_t number) {
  char bytes[5] = {tag};
  memcpy(bytes + 1, &number, sizeof number);
  tp_bytes_put(out, bytes, sizeof bytes);
}

/* `numbers` has the number of one that was sent before: negative if it has no upvalues. Such a one is the same wherever
 * it is mentioned, and needs no body, so it is no object. */
static void write_function(writer *w, int index) {
  lua_State *L = w->L;
  tp_codec *c = w->c;
  bool is_new;
  use_owner(c, L, w->owner);
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->numbers);
  lua_pushvalue(L, index);
  lua_rawget(L, -2);
  double known = lua_tonumber(L, -1);
  lua_pop(L, 2);
  if (known < 0) {
    c->last = lua_topointer(L, index);
    c->last_number = (uint32_t)-known;
    lua_pushvalue(L, index);
    lua_rawseti(L, LUA_REGISTRYINDEX, c->last_ref);
    write_number(&w->c->out, PLAIN, c->last_number);
    return;
  }
  if (known == 0 && write_named(w, index)) return;
  if (lua_iscfunction(L, index))
    refuse(w, "a C function that no loaded module has", "call it by a name on the other side");
  bool plain = known == 0 && !lua_getupvalue(L, index, 1);
  if (known == 0 && !plain) lua_pop(L, 1);
  if (!plain) {
    uint32_t number = number_of(w, index, &is_new);
    if (!is_new) {
      write_number(&w->c->out, SAME, number);
      return;
    }
  }
  if (known > 0) {
    write_number(&w->c->out, FUNCTION, (uint32_t)known);
    return;
  }
  tp_bytes_char(&c->out, plain ? PLAIN : FUNCTION);
  uint32_t number = write_bytecode(w, index);
  if (!number) return;
  use_owner(c, L, w->owner);
  lua_rawgeti(L, LUA_REGISTRYINDEX, c->numbers);
  lua_pushvalue(L, index);
  lua_pushnumber(L, plain ? -(double)number : number);
  lua_rawset(L, -3);
  lua_pop(L, 1);
}

/* --- objects of classes */

/* Pack the value at `index` with `module`'s own function; a message in the message. */
static void write_packed(writer *w, int index, const char *module) {
  lua_State *L = w->L;
  tp_codec *c = w->c;
  tp_codec *inner = another(c, L, &c->inner);
  int top = lua_gettop(L);
  luaL_checkstack(L, 20, "values within values");
  lua_getglobal(L, "require");
  lua_pushstring(L, module);
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "pack");
  lua_pushvalue(L, index);
  if (lua_pcall(L, 1, -1, 0) != LUA_OK) {
    const char *place = push_place(w), *why = lua_tostring(L, -2);
    lua_pushfstring(L, "%s: %s", place, why ? why : "it cannot be sent to another thread");
    raise_there(L);
  }
  tp_bytes_clear(&inner->out);
  inner->what = "a packed value";
  tp_codec_write(inner, L, w->protos, top + 2, lua_gettop(L));
  lua_settop(L, top);
  if (inner->out.size > UINT32_MAX) refuse(w, "an object of 4 GiB or more", "");
  tp_bytes_char(&c->out, PACKED);
  put_text(&c->out, module, strlen(module));
  put_text(&c->out, inner->out.data, inner->out.size);
  if (inner->mentions.size) tp_bytes_put(&c->mentions, inner->mentions.data, inner->mentions.size);
  if (c->mentions.failed) no_memory(L);
}

static void write_channel(writer *w, const tp_channel *channel) {
  tp_mention m = tp_channel_mention(channel);
  tp_bytes_char(&w->c->out, CHANNEL);
  tp_bytes_put(&w->c->out, &m, sizeof m);
  tp_bytes_put(&w->c->mentions, &m, sizeof m);
  if (w->c->mentions.failed) no_memory(w->L);
}

static void write_table(writer *w, int index, bool upvalue) {
  lua_State *L = w->L;
  if (upvalue && write_named(w, index)) return;
  if (lua_getmetatable(L, index)) {
    lua_getfield(L, -1, "__threadpool");
    const char *module = lua_tostring(L, -1);
    if (!module)
      refuse(w, "a table with a metatable",
             "send plain data, or give the metatable a field __threadpool (docs/LUA.md)");
    write_packed(w, index, module);
    lua_pop(L, 2);
    return;
  }
  bool is_new;
  uint32_t number = number_of(w, index, &is_new);
  if (is_new)
    write_number(&w->c->out, TABLE, (uint32_t)lua_objlen(L, index));
  else
    write_number(&w->c->out, SAME, number);
}

/* What can be written at once: no object, and nothing that may be refused. False: the value is not that. */
static bool write_simple(tp_codec *c, lua_State *L, int index, int type) {
  tp_bytes *out = &c->out;
  switch (type) {
  case LUA_TNIL: tp_bytes_char(out, NIL); return true;
  case LUA_TBOOLEAN: tp_bytes_char(out, lua_toboolean(L, index) ? TRUE_ : FALSE_); return true;
  case LUA_TNUMBER: {
    char bytes[9] = {NUMBER};
    double n = lua_tonumber(L, index);
    memcpy(bytes + 1, &n, sizeof n);
    tp_bytes_put(out, bytes, sizeof bytes);
    return true;
  }
  case LUA_TSTRING: {
    size_t size;
    const char *text = lua_tolstring(L, index, &size);
    if (size > UINT32_MAX) return false;
    tp_bytes_char(out, STRING);
    put_text(out, text, size);
    return true;
  }
  case LUA_TFUNCTION: /* the same again, as a rule */
    if (lua_topointer(L, index) != c->last) return false;
    write_number(out, PLAIN, c->last_number);
    return true;
  default: return false;
  }
}

static void write_value(writer *w, int index, bool upvalue) {
  lua_State *L = w->L;
  tp_bytes *out = &w->c->out;
  int type = lua_type(L, index);
  if (type == LUA_TFUNCTION) use_owner(w->c, L, w->owner); /* `last` is its */
  if (write_simple(w->c, L, index, type)) return;
  switch (type) {
  case LUA_TSTRING: refuse(w, "a string of 4 GiB or more", ""); break;
  case LUA_TLIGHTUSERDATA: {
    uint64_t p = (uintptr_t)lua_touserdata(L, index);
    tp_bytes_char(out, POINTER);
    tp_bytes_put(out, &p, sizeof p);
    break;
  }
  case LUA_TTABLE: write_table(w, index, upvalue); break;
  case LUA_TFUNCTION: write_function(w, index); break;
  case LUA_TCDATA: write_packed(w, index, "threadpool.cdata"); break;
  case LUA_TTHREAD:
    refuse(w, "a coroutine", "send its function, and make it on the other side");
    break;
  default: {
    const tp_channel *channel = tp_channel_at(L, index);
    if (channel)
      write_channel(w, channel);
    else if (!write_named(w, index))
      refuse(w, "a userdata", "open or make it on the other side");
  }
  }
}

/* A place for the messages about upvalue `name` of the function on top of the stack. */
static uint32_t site_of(writer *w, const char *name, int function) {
  tp_codec *c = w->c;
  if (c->site_count == c->site_room) c->sites = grow(w, c->sites, &c->site_room, sizeof *c->sites);
  tp_origin *site = &c->sites[c->site_count];
  lua_Debug ar;
  lua_pushvalue(w->L, function);
  lua_getinfo(w->L, ">S", &ar);
  site->name = name;
  site->line = ar.linedefined;
  memcpy(site->source, ar.short_src, sizeof site->source);
  return SITE | c->site_count++;
}

/* The function on top of the stack: its upvalues. */
static void write_upvalues(writer *w) {
  lua_State *L = w->L;
  int function = lua_gettop(L);
  uint32_t origin = w->origin;
  const char *name;
  for (int i = 1; (name = lua_getupvalue(L, function, i)); i++) {
    int type = lua_type(L, -1);
    /* What always travels needs no place. */
    bool plain = type <= LUA_TSTRING && type != LUA_TLIGHTUSERDATA;
    if (!plain) w->origin = site_of(w, name, function);
    write_value(w, lua_gettop(L), true);
    lua_pop(L, 1);
    w->origin = origin;
  }
  tp_bytes_char(&w->c->out, END);
}

/* The table on top of the stack: its items, then the rest. */
static void write_fields(writer *w) {
  lua_State *L = w->L;
  int table = lua_gettop(L);
  size_t items = lua_objlen(L, table);
  put_u32(&w->c->out, (uint32_t)items);
  for (size_t i = 1; i <= items; i++) {
    lua_rawgeti(L, table, (int)i);
    write_value(w, table + 1, false);
    lua_pop(L, 1);
  }
  for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
    if (lua_type(L, -2) == LUA_TNUMBER) {
      double k = lua_tonumber(L, -2);
      if (k >= 1 && k <= (double)items && k == (double)(size_t)k) continue;
    }
    write_value(w, table + 1, false);
    write_value(w, table + 2, false);
  }
  tp_bytes_char(&w->c->out, END);
}

/* A new message: no object is known. */
static void begin(tp_codec *c) {
  enum { KEEP = 1 << 16 };
  if (c->slot_count > KEEP) {
    tp_put(c->slots);
    c->slots = NULL;
    c->slot_count = 0;
  }
  if (++c->round == 0) { /* it has wrapped: what is old must not look new */
    if (c->slots) memset(c->slots, 0, c->slot_count * sizeof *c->slots);
    c->round = 1;
  }
  c->objects = c->site_count = 0;
  if (c->mentions.size) tp_bytes_clear(&c->mentions);
}

void tp_codec_write(tp_codec *c, lua_State *L, tp_protos *protos, int first, int last) {
  const void *owner = protos ? protos->owner : NULL;
  use_owner(c, L, owner);
  c->writer = &this_thread;
  c->frame = (uintptr_t)__builtin_frame_address(0);
  begin(c);
  size_t at = c->out.size;
  uint32_t count = (uint32_t)(last - first + 1);
  put_u32(&c->out, count);
  /* As a rule this is all. */
  while (first <= last && write_simple(c, L, first, lua_type(L, first))) first++;
  if (first > last) {
    if (c->out.failed) no_memory(L);
    return;
  }
  luaL_checkstack(L, 20, "values within values");
  lua_pushnil(L);
  writer w = {c, L, protos, owner, lua_gettop(L), 0};
  uint32_t before = count - (uint32_t)(last - first + 1);
  for (int i = first; i <= last; i++) {
    w.origin = before + (uint32_t)(i - first + 1);
    write_value(&w, i, false);
  }
  for (uint32_t i = 1; i <= c->objects; i++) {
    lua_rawgeti(L, w.objects, (int)i);
    w.origin = c->origins[i - 1];
    if (lua_isfunction(L, -1))
      write_upvalues(&w);
    else
      write_fields(&w);
    lua_pop(L, 1);
  }
  lua_settop(L, w.objects - 1);
  if (c->out.failed) no_memory(L);
  if (c->objects) count |= OBJECTS;
  memcpy(c->out.data + at, &count, sizeof count);
  c->writer = NULL;
}

/* --- reading */

typedef struct reader {
  tp_codec *c;
  lua_State *L;
  tp_protos *protos;
  const char *at, *end;
  int objects; /* on the stack: the objects by number */
  uint32_t count;
} reader;

static void need(reader *r, size_t n) {
  if ((size_t)(r->end - r->at) < n) luaL_error(r->L, "a message between threads is cut off");
}

static uint32_t get_u32(reader *r) {
  uint32_t n;
  need(r, sizeof n);
  memcpy(&n, r->at, sizeof n);
  r->at += sizeof n;
  return n;
}

static const char *get_text(reader *r, size_t *size) {
  *size = get_u32(r);
  need(r, *size);
  const char *text = r->at;
  r->at += *size;
  return text;
}

/* The object on top of the stack gets the next number. */
static void keep(reader *r) {
  lua_pushvalue(r->L, -1);
  lua_rawseti(r->L, r->objects, (int)++r->count);
}

/* "module", or "module\0key". */
static void read_named(reader *r) {
  lua_State *L = r->L;
  size_t size;
  const char *name = get_text(r, &size);
  size_t module = strnlen(name, size);
  lua_getglobal(L, "require");
  lua_pushlstring(L, name, module);
  lua_call(L, 1, 1);
  if (module == size) return;
  lua_pushlstring(L, name + module + 1, size - module - 1);
  lua_gettable(L, -2);
  lua_remove(L, -2);
  if (lua_isnil(L, -1)) {
    lua_pushlstring(L, name, module);
    lua_pushlstring(L, name + module + 1, size - module - 1);
    luaL_error(L, "module '%s' has no '%s' on this thread", lua_tostring(L, -2),
               lua_tostring(L, -1));
  }
}

typedef struct chunk {
  const char *data;
  size_t size;
} chunk;

static const char *give_chunk(lua_State *L, void *ud, size_t *size) {
  (void)L;
  chunk *c = ud;
  *size = c->size;
  c->size = 0;
  return *size ? c->data : NULL;
}

static void load(reader *r, const char *bytecode, size_t size) {
  chunk c = {bytecode, size};
  if (lua_load(r->L, give_chunk, &c, "=function") != LUA_OK) lua_error(r->L);
}

/* Pushes a function; a plain one is loaded once. */
static void read_function(reader *r, bool plain) {
  lua_State *L = r->L;
  uint32_t number = get_u32(r);
  if (!number) {
    size_t size;
    const char *bytecode = get_text(r, &size);
    load(r, bytecode, size);
    return;
  }
  if (r->protos) use_owner(r->c, L, r->protos->owner);
  if (plain && number == r->c->read_number) { /* the same again, as a rule */
    lua_rawgeti(L, LUA_REGISTRYINDEX, r->c->read_ref);
    return;
  }
  if (plain) {
    lua_rawgeti(L, LUA_REGISTRYINDEX, r->c->loaded);
    lua_rawgeti(L, -1, (int)number);
    lua_remove(L, -2);
    if (!lua_isnil(L, -1)) {
      lua_pushvalue(L, -1);
      lua_rawseti(L, LUA_REGISTRYINDEX, r->c->read_ref);
      r->c->read_number = number;
      return;
    }
    lua_pop(L, 1);
  }
  const tp_proto *p = r->protos ? tp_proto_at(r->protos, number) : NULL;
  if (!p) luaL_error(L, "a function that nobody has sent");
  load(r, p->bytecode, p->size);
  if (plain) {
    use_owner(r->c, L, r->protos->owner);
    lua_rawgeti(L, LUA_REGISTRYINDEX, r->c->loaded);
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, (int)number);
    lua_pop(L, 1);
  }
}

static void read_packed(reader *r) {
  lua_State *L = r->L;
  size_t size;
  const char *module = get_text(r, &size);
  int top = lua_gettop(L);
  luaL_checkstack(L, 20, "values within values");
  lua_getglobal(L, "require");
  lua_pushlstring(L, module, size);
  lua_call(L, 1, 1);
  lua_getfield(L, -1, "unpack");
  const char *message = get_text(r, &size);
  int n = tp_codec_read(r->c, L, r->protos, message, size);
  lua_call(L, n, 1);
  lua_replace(L, top + 1);
  lua_settop(L, top + 1);
}

static void read_channel(reader *r) {
  tp_mention m;
  need(r, sizeof m);
  memcpy(&m, r->at, sizeof m);
  r->at += sizeof m;
  tp_channel_push(r->L, m);
}

/* Pushes one value; false: END was there instead. */
static bool read_value(reader *r) {
  lua_State *L = r->L;
  need(r, 1);
  switch (*r->at++) {
  case NIL: lua_pushnil(L); break;
  case FALSE_: lua_pushboolean(L, 0); break;
  case TRUE_: lua_pushboolean(L, 1); break;
  case NUMBER: {
    double n;
    need(r, sizeof n);
    memcpy(&n, r->at, sizeof n);
    r->at += sizeof n;
    lua_pushnumber(L, n);
    break;
  }
  case STRING: {
    size_t size;
    const char *text = get_text(r, &size);
    lua_pushlstring(L, text, size);
    break;
  }
  case POINTER: {
    uint64_t p;
    need(r, sizeof p);
    memcpy(&p, r->at, sizeof p);
    r->at += sizeof p;
    lua_pushlightuserdata(L, (void *)(uintptr_t)p);
    break;
  }
  case TABLE: {
    uint32_t items = get_u32(r);
    lua_createtable(L, (int)items, 0);
    keep(r);
    break;
  }
  case FUNCTION:
    read_function(r, false);
    keep(r);
    break;
  case PLAIN: read_function(r, true); break;
  case SAME: lua_rawgeti(L, r->objects, (int)get_u32(r)); break;
  case NAMED: read_named(r); break;
  case PACKED: read_packed(r); break;
  case CHANNEL: read_channel(r); break;
  case END: return false;
  default: luaL_error(L, "a message between threads is not well-formed");
  }
  return true;
}

static void read_body(reader *r) {
  lua_State *L = r->L;
  int object = lua_gettop(L);
  if (lua_isfunction(L, object)) {
    for (int i = 1; read_value(r); i++)
      if (!lua_setupvalue(L, object, i)) lua_pop(L, 1);
    return;
  }
  uint32_t items = get_u32(r);
  for (uint32_t i = 1; i <= items; i++) {
    read_value(r);
    lua_rawseti(L, object, (int)i);
  }
  while (read_value(r)) {
    read_value(r);
    lua_rawset(L, object);
  }
}

bool tp_codec_number(const char *data, size_t size, double *n) {
  uint32_t count;
  if (size != sizeof count + 1 + sizeof *n || data[sizeof count] != NUMBER) return false;
  memcpy(&count, data, sizeof count);
  memcpy(n, data + sizeof count + 1, sizeof *n);
  return count == 1;
}

/* The values that cannot fail to be read, and their sizes. */
bool tp_codec_simple(const char *data, size_t size) {
  uint32_t count;
  if (size <= sizeof count) return false;
  memcpy(&count, data, sizeof count);
  return count == 1 && data[sizeof count] <= STRING;
}

int tp_codec_read(tp_codec *c, lua_State *L, tp_protos *protos, const char *data, size_t size) {
  reader r = {c, L, protos, data, data + size, 0, 0};
  uint32_t count = get_u32(&r);
  bool objects = count & OBJECTS;
  count &= ~OBJECTS;
  luaL_checkstack(L, (int)count + 20, "too many values");
  if (objects) {
    lua_newtable(L);
    r.objects = lua_gettop(L);
  }
  for (uint32_t i = 0; i < count; i++) read_value(&r);
  for (uint32_t i = 1; i <= r.count; i++) {
    lua_rawgeti(L, r.objects, (int)i);
    read_body(&r);
    lua_pop(L, 1);
  }
  if (objects) lua_remove(L, r.objects);
  return (int)count;
}
