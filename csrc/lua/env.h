/* env.h - what each Lua state has of ours: a codec, a queue for the results of what it submits, and the functions that
 * are the same in the program's state and in those of the workers.
 *
 * Depends on: lua/codec.h, pool/completions.h, api/. Used by: lua/. [who has the state]
 */
#ifndef TP_LUA_ENV_H
#define TP_LUA_ENV_H

#include "api/pool.h"
#include "lua/channel.h"
#include "lua/codec.h"
#include "pool/completions.h"

typedef struct tp_lua tp_lua; /* lua/vm.h */

typedef struct tp_env {
  tp_codec codec;
  threadpool_queue *queue;
  uint32_t marks;         /* of pools that were made */
  tp_codec channel_codec; /* what goes into channels is for any pool */
  int channel_read;       /* a function, as of luaL_ref */
  tp_lock waits_lock;     /* of the lists of waits */
  tp_waits *waits;        /* of the call that has the state; NULL: the program's own state */
  struct tp_channel_handle *handles;
  struct tp_wait *all_waits;
  const void *caller; /* who submitted last; it and its source are kept in the registry */
  int caller_ref, source_ref;
} tp_env;

/* The queue of the program's state, which outlives the state while a pool still pushes to it. */
typedef struct tp_inbox {
  threadpool_queue *queue;
  _Atomic unsigned users; /* the state, and each of its pools until that is shut down */
} tp_inbox;

/* What a Lua state holds of a pool: a userdata. */
typedef struct tp_lua_pool {
  const char *kind; /* constant: what it is known by */
  threadpool_t *pool;
  tp_lua *lua;   /* NULL: it was never made */
  uint32_t mark; /* constant: of its entries in the queue of this state, which pools share */
  bool closed;
  bool owner;      /* it closes the pool; else it is the one that a worker's state belongs to */
  tp_inbox *inbox; /* of an owner, until the pool is shut down */
} tp_lua_pool;

/* Operations of a pool for Lua functions: what is submitted is a message, function first. */
enum { TP_LUA_OPCODE = 65534, TP_LUA_BLOCKING_OPCODE = 65535 };

/* The state's part of env, which is zero before: raises. With the table on top of the stack: puts the functions into it,
 * each with env for an upvalue. */
void tp_env_open(tp_env *env, lua_State *L, void (*notify)(void *arg), void *arg);
/* All but the queue. */
void tp_env_free(tp_env *env);

/* Pushes a userdata for a pool, closed at first. */
tp_lua_pool *tp_env_push_pool(lua_State *L);
/* The pool that argument `arg` is; raises if it is none, or closed. */
tp_lua_pool *tp_env_pool(lua_State *L, int arg);

/* The env of a function of ours. */
static inline tp_env *tp_env_of(lua_State *L) {
  return lua_touserdata(L, lua_upvalueindex(1));
}
/* Adds a function to the table on top of the stack. */
void tp_env_add(tp_env *env, lua_State *L, const char *name, lua_CFunction f);

#endif
