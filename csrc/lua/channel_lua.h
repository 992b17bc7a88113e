/* channel_lua.h - channels as a Lua state has them: handles, waits, and what happens to them when a call or a state ends.
 *
 * The rules are in lua/channel.h. A handle is a userdata, one for each channel in each state; a wait is one, too, which
 * belongs to a task of lua/threadpool/channel.lua. Both unlink themselves when they are collected; those of a state that
 * is thrown away as it is (M6) are found by their lists. Depends on: lua/env.h. Used by: lua/.
 */
#ifndef TP_LUA_CHANNEL_LUA_H
#define TP_LUA_CHANNEL_LUA_H

#include "lua/env.h"

/* The functions of a state, into the table on top of the stack. Raises. */
void tp_channel_open(tp_env *env, lua_State *L);
/* The channel that a value is a handle of; NULL: it is none. */
tp_channel *tp_channel_at(lua_State *L, int index);
/* Pushes a handle; raises if the channel is gone. */
void tp_channel_push(lua_State *L, tp_mention m);
/* Whether a notice is for the task whose table is at `task`: its wait was told. */
bool tp_channel_notice(lua_State *L, int task, uint64_t id);
/* [any] The call is over: its waits are left, and told so. */
void tp_waits_end(tp_env *env, tp_waits *waits);
/* [nobody is in the state any more] Gives back what its handles hold. */
void tp_channel_forget(tp_env *env);
/* [inside the pool] K8: request `id` of this pool mentions what the codec has written last. 0: what each state reads. */
void tp_lua_mention(tp_lua *lua, uint64_t id, const tp_codec *codec);

#endif
