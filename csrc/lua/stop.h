/* stop.h - ends a Lua function that was told to end and does not.
 *
 * E1  Told is a task that was cancelled (also by its timeout, or a pool that closes) and whose coroutine runs. Whoever
 *     cancels starts the watch, and so does a task that finds itself cancelled when it begins to run: a timer of the
 *     reactor, which goes on while there is such a task. What is not cancelled pays for one exchange.
 * E2  A function that has not ended `grace` after the watch has seen it is sent a signal, again and again, on the thread
 *     that has its state. The thread cannot leave the state meanwhile: the watch has the state's lock, which leaving takes.
 * E3  In the interpreter, or in C, the signal sets a hook of the state (lua_sethook may be called from a signal handler):
 *     each instruction raises an error from then on, until the coroutine has ended. The state is whole.
 * E4  Machine code that LuaJIT has compiled looks at no hook. If the signal comes while such code of this state runs, and
 *     no code of others is on the stack between it and us, the thread leaves by the way of a crash (docs/CRASHES.md):
 *     machine code holds no lock and is in the middle of nothing but its state, which is broken then (M6).
 * E5  What the state has is given back whole: its memory (lua/memory.h), and its machine code, which LuaJIT maps by itself.
 *     There is one area of it at a time, of a size that we set; where it begins is told by the link that LuaJIT writes
 *     there. If that is not found, E4 does not happen. What the unwinder knows of the area it is told to forget; if it
 *     does not, the area stays.
 *
 * C code that does not return to Lua is not stopped by this. Depends on: lua/vm.h, sched/stop.h, io/reactor.h.
 * Used by: lua/.
 */
#ifndef TP_LUA_STOP_H
#define TP_LUA_STOP_H

#include "lua/vm.h"

/* [any] Before the pool's first call; grace in ms. After the pool was shut down. */
void tp_lua_stop_init(tp_lua *lua, unsigned grace_ms);
void tp_lua_stop_free(tp_lua *lua);

/* [who has the state] Around lua_resume. */
void tp_lua_stop_begin(tp_vm *vm, tp_lua_call *c);
void tp_lua_stop_end(tp_vm *vm);

/* [who has the state] Whether the coroutine that has just failed was stopped; the state is as before then. */
bool tp_lua_was_stopped(tp_vm *vm);

/* The functions of a worker's state, into the table on top of the stack. */
void tp_lua_stop_open(tp_vm *vm, lua_State *L);

/* [nobody has the state] E5 */
void tp_lua_stop_unmap(tp_vm *vm);

#endif
