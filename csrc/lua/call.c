/* call.c - a Lua function on a worker: an operation whose handler is a coroutine of a worker's state. Rules: vm.h.
 *
 * The coroutine is a loop (worker.lua): it takes what is to be done (decode), does it, gives the result (encode), and
 * yields. So the next call goes on in it, and nothing is made for a call but what it needs itself. */
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"
#include "lua/channel_lua.h"
#include "lua/stop.h"

/* What the coroutine yields, by address: anything else is a yield of the program's. */
static const char FINISHED, WAITING;

static tp_vm *vm_of(lua_State *L) {
  return (tp_vm *)((char *)tp_env_of(L) - offsetof(tp_vm, env));
}

/* The call that has the state. There is none while an init function runs, and when the state is closed: finalizers. */
static tp_lua_call *current_of(lua_State *L) {
  tp_lua_call *c = vm_of(L)->current;
  if (!c) luaL_error(L, "no task runs here: this is for the functions that are spawned");
  return c;
}

/* --- what the coroutine calls */

/* decode() -> function, ... */
static int call_decode(lua_State *L) {
  tp_vm *vm = vm_of(L);
  size_t size = 0;
  const char *message = threadpool_payload(current_of(L)->call, &size);
  if (!message)
    return luaL_error(L, "operation \"lua\" takes its function from Lua: use pool:spawn");
  return tp_codec_read(&vm->env.codec, L, &vm->lua->protos, message, size);
}

/* Writes values 1 to n as what the current call gives. */
static tp_codec *write_values(tp_vm *vm, lua_State *L, const char *what, int n) {
  tp_codec *codec = tp_codec_begin(&vm->env.codec, L, what);
  tp_codec_write(codec, L, &vm->lua->protos, 1, n);
  if (codec->mentions.size) /* these channels stay until the call's results were read */
    tp_lua_mention(vm->lua, threadpool_task_id(vm->current->call), codec);
  return codec;
}

/* At once: the codec is for the next message when Lua goes on. */
static void give(task_t *call, const tp_bytes *out) {
  if (threadpool_return_copy(call, out->data, out->size) != 0)
    threadpool_fail(call, ERR_MALLOC_FAILED, "out of memory for a result of %zu bytes", out->size);
}

/* encode(...): the result */
static int call_encode(lua_State *L) {
  task_t *call = current_of(L)->call;
  give(call, &write_values(vm_of(L), L, "result", lua_gettop(L))->out);
  return 0;
}

/* emit(value) -> code; ERR_QUEUE_FULL: wait, and try again */
static int call_emit(lua_State *L) {
  task_t *call = current_of(L)->call;
  const tp_bytes *out = &write_values(vm_of(L), L, "partial result", 1)->out;
  lua_pushnumber(L, threadpool_emit(call, out->data, out->size));
  return 1;
}

static int call_cancelled(lua_State *L) {
  lua_pushboolean(L, threadpool_cancelled(current_of(L)->call));
  return 1;
}

static int call_shield(lua_State *L) {
  threadpool_shield(current_of(L)->call);
  return 0;
}

static int call_unshield(lua_State *L) {
  threadpool_unshield(current_of(L)->call);
  return 0;
}

/* current() -> the call, a lightuserdata; id() -> its number */
static int call_current(lua_State *L) {
  lua_pushlightuserdata(L, vm_of(L)->current);
  return 1;
}

static int call_id(lua_State *L) {
  lua_pushnumber(L, (double)threadpool_task_id(current_of(L)->call));
  return 1;
}

/* wake(call) */
static int call_wake(lua_State *L) {
  tp_vm_wake(lua_touserdata(L, 1));
  return 0;
}

/* nap(seconds): the call is woken so much later */
static int call_nap(lua_State *L) {
  double seconds = luaL_checknumber(L, 1), most = 1e9;
  if (!(seconds < most)) seconds = most; /* also inf */
  tp_call_nap(current_of(L)->call, tp_now_ns() + (uint64_t)(seconds * 1e9));
  return 0;
}

void tp_lua_call_open(tp_vm *vm, lua_State *L) {
  static const struct {
    const char *name;
    lua_CFunction f;
  } functions[] = {{"decode", call_decode},   {"encode", call_encode},
                   {"emit", call_emit},       {"cancelled", call_cancelled},
                   {"shield", call_shield},   {"unshield", call_unshield},
                   {"current", call_current}, {"id", call_id},
                   {"wake", call_wake},       {"nap", call_nap}};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
    tp_env_add(&vm->env, L, functions[i].name, functions[i].f);
  lua_pushlightuserdata(L, (void *)&FINISHED);
  lua_setfield(L, -2, "FINISHED");
  lua_pushlightuserdata(L, (void *)&WAITING);
  lua_setfield(L, -2, "WAITING");
}

/* --- under lua_cpcall: these may raise */

static void call_function(lua_State *L, tp_vm *vm, int function) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, vm->functions[function]);
}

/* The coroutine of a call that is over is for the collector. */
static int forget(lua_State *L) {
  tp_lua_call *c = lua_touserdata(L, 1);
  luaL_unref(L, LUA_REGISTRYINDEX, c->thread);
  call_function(L, c->vm, TP_VM_FORGET);
  lua_pushlightuserdata(L, c);
  lua_call(L, 1, 0);
  return 0;
}

static int pump(lua_State *L) {
  call_function(L, lua_touserdata(L, 1), TP_VM_PUMP);
  lua_call(L, 0, 0);
  return 0;
}

/* A coroutine for c. */
static int make_thread(lua_State *L) {
  tp_lua_call *c = lua_touserdata(L, 1);
  c->co = lua_newthread(L);
  c->thread = luaL_ref(L, LUA_REGISTRYINDEX);
  call_function(L, c->vm, TP_VM_BODY);
  lua_xmove(L, c->co, 1);
  return 0;
}

/* c->co has failed: its error and where it was, as a message; and what it says, for people. */
static int describe(lua_State *L) {
  tp_lua_call *c = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_xmove(c->co, L, 1);
  lua_getglobal(L, "tostring");
  lua_pushvalue(L, 1);
  const char *text = lua_pcall(L, 1, 1, 0) == LUA_OK ? lua_tostring(L, -1) : NULL;
  threadpool_fail(c->call, ERR_LUA, "%s", text ? text : "an error that is not a string");
  luaL_traceback(L, c->co, NULL, 0);
  lua_replace(L, 2);
  lua_settop(L, 2);
  give(c->call, &write_values(c->vm, L, "error", 2)->out);
  return 0;
}

/* The same, if the error itself cannot travel. */
static int describe_text(lua_State *L) {
  tp_lua_call *c = lua_touserdata(L, 1);
  lua_settop(L, 0);
  lua_pushstring(L, c->call->result.r.error_msg);
  luaL_traceback(L, c->co, NULL, 0);
  give(c->call, &write_values(c->vm, L, "error", 2)->out);
  return 0;
}

/* --- the handler */

static bool protected(tp_vm *vm, lua_CFunction f, void *arg) {
  bool good = lua_cpcall(vm->L, f, arg) == LUA_OK;
  lua_settop(vm->L, 0);
  return good;
}

/* NULL: out of memory. *state is c's before a coroutine is made: a finalizer may run then, and crash. */
static tp_lua_call *begin(tp_vm *vm, task_t *call, void **state) {
  tp_lua_call *c = vm->spare;
  bool is_new = !c;
  if (is_new) {
    c = tp_get(sizeof *c);
    if (!c) return NULL;
    *c = (tp_lua_call){.vm = vm};
  } else {
    vm->spare = c->next;
  }
  call->format = RESULT_LUA;
  c->call = call;
  c->task = tp_task_ref(call->task);
  c->stage = TP_LUA_RUNNING;
  *state = c;
  if (!is_new || protected(vm, make_thread, c)) return c;
  *state = NULL;
  tp_task_unref(c->task);
  tp_put(c);
  return NULL;
}

/* Who has the state; NULL: nobody from now on, though finalizers may still run in it. */
static void set_current(tp_vm *vm, tp_lua_call *c) {
  vm->current = c;
  vm->env.waits = c ? &c->waits : NULL;
}

/* c is over, in an orderly way; its coroutine serves the next one if it is in its loop. *state is c's until the program's
 * code has run for the last time: a finalizer may crash. */
static void end(tp_vm *vm, tp_lua_call *c, void **state, bool reusable) {
  tp_task *task = c->task;
  if (!reusable) protected(vm, forget, c);
  tp_waits_end(&vm->env, &c->waits);
  *state = NULL;
  if (reusable) {
    c->next = vm->spare;
    vm->spare = c;
  } else {
    tp_put(c);
  }
  set_current(vm, NULL);
  tp_vm_leave(vm, NULL);
  tp_task_unref(task);
}

static void give_error(tp_vm *vm, tp_lua_call *c) {
  if (!protected(vm, describe, c) && !protected(vm, describe_text, c) &&
      c->call->result.r.status >= 0)
    threadpool_fail(c->call, ERR_LUA, "an error, and no memory to say which");
}

static int run(tp_vm *vm, tp_lua_call *c, void **state) {
  set_current(vm, c);
  for (tp_lua_call *left; tp_load(&vm->any_dead, relaxed) && (left = tp_vm_dead(vm));) { /* M5 */
    protected(vm, forget, left);
    tp_put(left);
  }
  tp_lua_stop_begin(vm, c);
  if (tp_completions_some(vm->env.queue)) protected(vm, pump, vm); /* callbacks, too */
  int status = lua_resume(c->co, 0);
  bool yielded = status == LUA_YIELD;
  const void *what = yielded ? lua_touserdata(c->co, -1) : NULL;
  bool stopped = tp_lua_was_stopped(vm);
  if (!yielded && !stopped)
    give_error(vm, c); /* the error's __tostring and pack are the program's */
  tp_lua_stop_end(vm);
  if (tp_lua_was_stopped(vm)) stopped = true;
  if (yielded && what != &FINISHED) {
    lua_settop(c->co, 0);
    set_current(vm, NULL);
    tp_vm_leave(vm, c);
    return what == &WAITING ? THREADPOOL_PENDING : THREADPOOL_AGAIN;
  }
  if (yielded) {
    lua_settop(c->co, 0);
  } else if (stopped) {
    threadpool_fail(c->call, ERR_CANCELLED, "stopped: it did not end when it was told to");
  }
  end(vm, c, state, yielded);
  return THREADPOOL_READY;
}

static int poll(task_t *call, void **state, bool blocking) {
  tp_lua_call *c = *state;
  if (c) {
    bool broken;
    if (tp_vm_enter(c->vm, c, &broken)) return run(c->vm, c, state);
    if (!broken) return THREADPOOL_PENDING;
    threadpool_fail(call, ERR_LUA,
                    "its Lua state was lost: another task of that state crashed or was stopped");
    *state = NULL;
    tp_vm_drop(c);
    return THREADPOOL_READY;
  }
  tp_vm *vm = tp_vm_take(threadpool_user_data(call), blocking);
  if (!vm) {
    threadpool_fail(call, tp_said_code(), "%s", tp_said());
    return THREADPOOL_READY;
  }
  c = begin(vm, call, state);
  if (!c) {
    tp_vm_leave(vm, NULL);
    threadpool_fail(call, ERR_MALLOC_FAILED, "out of memory for a coroutine");
    return THREADPOOL_READY;
  }
  return run(vm, c, state);
}

static int poll_here(task_t *call, void **state) {
  return poll(call, state, false);
}
static int poll_blocking(task_t *call, void **state) {
  return poll(call, state, true);
}
static void drop(void *state) {
  tp_vm_drop(state);
}

int tp_lua_register(tp_lua *lua) {
  threadpool_handler h = {
      .name = "lua", .opcode = TP_LUA_OPCODE, .poll = poll_here, .drop = drop, .user_data = lua};
  int error = threadpool_register(lua->pool, &h);
  h.name = "lua_blocking";
  h.opcode = TP_LUA_BLOCKING_OPCODE;
  h.poll = poll_blocking;
  h.blocking = true;
  return error ? error : threadpool_register(lua->pool, &h);
}
