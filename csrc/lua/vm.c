#include "lua/vm.h"

#include <string.h>

#include "base/error.h"
#include "lua/channel_lua.h"
#include "lua/stop.h"

enum { IDLE_MOST = 4 };

/* --- a state's beginning and end */

static void notify(void *mail);

static int fill_core(lua_State *L) {
  tp_vm *vm = lua_touserdata(L, lua_upvalueindex(1));
  lua_newtable(L);
  tp_env_open(&vm->env, L, notify, vm->mail);
  vm->mail->queue = vm->env.queue;
  vm->env.queue->counted = true;
  tp_module_open(&vm->env, L);
  tp_lua_call_open(vm, L);
  tp_lua_stop_open(vm, L);
  tp_lua_pool *p = tp_env_push_pool(L);
  p->pool = vm->lua->pool;
  p->lua = vm->lua;
  p->closed = false;
  lua_setfield(L, -2, "pool");
  return 1;
}

static void set_path(lua_State *L, const char *name, const char *path) {
  lua_getglobal(L, "package");
  lua_pushstring(L, path);
  lua_setfield(L, -2, name);
  lua_pop(L, 1);
}

/* Everything that may raise. What a worker does is written in Lua: lua/threadpool/worker.lua. */
static int open_state(lua_State *L) {
  static const char *const parts[TP_VM_FUNCTIONS] = {"body", "pump", "forget"};
  tp_vm *vm = lua_touserdata(L, 1);
  tp_lua *lua = vm->lua;
  luaL_openlibs(L);
  set_path(L, "path", lua->path);
  set_path(L, "cpath", lua->cpath);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushlightuserdata(L, vm);
  lua_pushcclosure(L, fill_core, 1);
  lua_setfield(L, -2, "threadpool.core");
  lua_settop(L, 0);
  lua_getglobal(L, "require");
  lua_pushstring(L, "threadpool.worker");
  lua_call(L, 1, 1);
  for (int i = 0; i < TP_VM_FUNCTIONS; i++) {
    lua_getfield(L, 1, parts[i]);
    vm->functions[i] = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  lua_settop(L, 0);
  if (lua->init.size == 0) return 0;
  int n = tp_codec_read(&vm->env.codec, L, &lua->protos, lua->init.data, lua->init.size);
  if (lua_pcall(L, n - 1, 0, 0) == LUA_OK) return 0;
  const char *why = lua_tostring(L, -1);
  return luaL_error(L, "init: %s", why ? why : "an error that is not a string");
}

static void free_list(tp_lua_call *c) {
  for (tp_lua_call *next; c; c = next) {
    next = c->next;
    tp_put(c);
  }
}

/* Free those whose last result has come. */
static void sweep_mail(tp_lua *lua) {
  tp_lock_acquire(&lua->lock);
  for (tp_vm_mail **at = &lua->left, *m; (m = *at);) {
    if (tp_load(&m->queue->expected, acquire) > 0) { /* pairs with the release in deliver.c: N4 */
      at = &m->next;
      continue;
    }
    *at = m->next;
    tp_completions_free(m->queue);
    tp_put(m);
  }
  tp_lock_release(&lua->lock);
}

static void leave_mail(tp_vm *vm) {
  tp_lua *lua = vm->lua;
  tp_lock_acquire(&vm->mail->lock);
  vm->mail->vm = NULL;
  tp_lock_release(&vm->mail->lock);
  if (!vm->env.queue) {
    tp_put(vm->mail);
    return;
  }
  vm->mail->queue = vm->env.queue; /* it may not have got it: its state could not be made */
  vm->env.queue = NULL;
  tp_lock_acquire(&lua->lock);
  vm->mail->next = lua->left;
  lua->left = vm->mail;
  tp_lock_release(&lua->lock);
  sweep_mail(lua);
}

static void list(tp_vm *vm) {
  tp_lua *lua = vm->lua;
  tp_lock_acquire(&lua->lock);
  vm->next_of_all = lua->all;
  if (lua->all) lua->all->before_of_all = vm;
  lua->all = vm;
  tp_lock_release(&lua->lock);
}

static void unlist(tp_vm *vm) {
  tp_lua *lua = vm->lua;
  tp_lock_acquire(&lua->lock);
  if (vm->next_of_all) vm->next_of_all->before_of_all = vm->before_of_all;
  *(vm->before_of_all ? &vm->before_of_all->next_of_all : &lua->all) = vm->next_of_all;
  tp_lock_release(&lua->lock);
}

/* Nobody is in it, and no call is left. */
static void vm_free(tp_vm *vm) {
  unlist(vm);
  if (vm->L && !vm->broken) lua_close(vm->L);
  tp_channel_forget(&vm->env);           /* what a broken one has */
  if (vm->broken) tp_lua_stop_unmap(vm); /* E5 */
  tp_memory_free(&vm->memory);           /* M6 */
  leave_mail(vm);
  tp_env_free(&vm->env);
  free_list(vm->spare);
  free_list(vm->dead.first);
  tp_free(vm);
}

/* One that the caller has. NULL: after tp_say. */
static tp_vm *vm_new(tp_lua *lua, bool shared) {
  tp_vm *vm = tp_alloc(sizeof *vm);
  tp_vm_mail *mail = tp_get(sizeof *mail);
  if (!vm || !mail) {
    tp_free(vm);
    tp_put(mail);
    tp_say(ERR_MALLOC_FAILED, "out of memory for a Lua state");
    return NULL;
  }
  *mail = (tp_vm_mail){.vm = vm};
  vm->mail = mail;
  vm->lua = lua;
  vm->shared = shared;
  vm->busy = true;
  vm->thread = pthread_self();
  vm->calls = 1;
  list(vm);
  vm->L = lua_newstate(tp_memory_alloc, &vm->memory);
  if (!vm->L) vm->L = luaL_newstate(); /* a build that has its own allocator: M6 leaks there */
  if (!vm->L) {
    tp_say(ERR_MALLOC_FAILED, "out of memory for a Lua state");
  } else if (lua_cpcall(vm->L, open_state, vm) != LUA_OK) {
    const char *why = lua_tostring(vm->L, -1);
    tp_say(ERR_LUA, "a worker's Lua state could not be made: %s", why ? why : "unknown error");
  } else {
    return vm;
  }
  vm_free(vm);
  return NULL;
}

/* --- the states of a pool */

static char *copy_of(const char *text) {
  size_t size = strlen(text) + 1;
  char *copy = tp_get(size);
  if (copy) memcpy(copy, text, size);
  return copy;
}

tp_lua *tp_lua_new(threadpool_t *pool, const char *path, const char *cpath, unsigned grace_ms) {
  tp_lua *lua = tp_alloc(sizeof *lua);
  if (!lua) return NULL;
  lua->pool = pool;
  lua->protos.owner = pool;
  lua->path = copy_of(path);
  lua->cpath = copy_of(cpath);
  lua->slots = (unsigned)threadpool_workers(pool);
  lua->slot = tp_alloc(lua->slots * sizeof(tp_vm *));
  if (lua->path && lua->cpath && lua->slot) {
    tp_lua_stop_init(lua, grace_ms);
    return lua;
  }
  tp_lua_free(lua);
  return NULL;
}

void tp_lua_close(tp_lua *lua) {
  for (unsigned i = 0; i < lua->slots; i++)
    if (lua->slot[i]) vm_free(lua->slot[i]);
  lua->slots = 0;
  for (tp_vm *vm = lua->idle, *next; vm; vm = next) {
    next = vm->next;
    vm_free(vm);
  }
  lua->idle = NULL;
  sweep_mail(lua);
}

void tp_lua_free(tp_lua *lua) {
  if (!lua) return;
  tp_mentions_free(&lua->mentions);
  tp_lua_stop_free(lua);
  tp_protos_free(&lua->protos);
  tp_bytes_free(&lua->init);
  tp_put(lua->path);
  tp_put(lua->cpath);
  tp_free(lua->slot);
  tp_free(lua);
}

/* Locks of both held, or nobody else knows it: it is the caller's, with one call more. */
static bool try_take(tp_vm *vm) {
  tp_lock_acquire(&vm->lock);
  bool had = !vm->busy && !vm->broken;
  if (had) {
    vm->busy = true;
    vm->thread = pthread_self();
    vm->calls++;
  }
  tp_lock_release(&vm->lock);
  return had;
}

/* The seat's own, or another seat's that is free, or one that nobody has. */
static tp_vm *find(tp_lua *lua, unsigned seat) {
  for (unsigned i = 0; seat < lua->slots && i < lua->slots; i++) {
    tp_vm *vm = lua->slot[(seat + i) % lua->slots];
    if (vm && try_take(vm)) return vm;
    if (!vm && i == 0) return NULL; /* its own is still to be made */
  }
  tp_vm *vm = lua->idle;
  if (!vm) return NULL;
  lua->idle = vm->next;
  lua->idles--;
  tp_lock_acquire(&vm->lock);
  vm->busy = true;
  vm->thread = pthread_self();
  vm->calls = 1;
  tp_lock_release(&vm->lock);
  return vm;
}

tp_vm *tp_vm_take(tp_lua *lua, bool blocking) {
  tp_worker *self = blocking ? NULL : tp_self();
  unsigned seat = self && self->index < lua->slots ? self->index : lua->slots;
  tp_lock_acquire(&lua->lock);
  tp_vm *vm = find(lua, seat);
  bool slot = !vm && seat < lua->slots && !lua->slot[seat];
  tp_lock_release(&lua->lock);
  if (vm || !(vm = vm_new(lua, slot))) return vm;
  if (slot) { /* only this seat fills it, but another thread may have sat there meanwhile */
    tp_lock_acquire(&lua->lock);
    if (lua->slot[seat])
      vm->shared = false;
    else
      lua->slot[seat] = vm;
    tp_lock_release(&lua->lock);
  }
  return vm;
}

/* It is not a call's any more, and not busy. */
static void put_back(tp_vm *vm) {
  tp_lua *lua = vm->lua;
  tp_lock_acquire(&lua->lock);
  bool keep = !vm->broken && lua->idles < IDLE_MOST;
  if (keep) {
    vm->next = lua->idle;
    lua->idle = vm;
    lua->idles++;
  }
  tp_lock_release(&lua->lock);
  if (!keep) vm_free(vm);
}

/* --- calls and their states. Lock held: */

static void link_call(tp_lua_list *list, tp_lua_call *c) {
  c->prev = NULL;
  c->next = list->first;
  if (c->next) c->next->prev = c;
  list->first = c;
}

static void unlink_call(tp_lua_list *list, tp_lua_call *c) {
  if (c->prev)
    c->prev->next = c->next;
  else
    list->first = c->next;
  if (c->next) c->next->prev = c->prev;
}

/* The task of a call that is to be woken without the lock, with a reference; NULL: none. */
static tp_task *ref_of(tp_lua_call *c) {
  return c ? tp_task_ref(c->task) : NULL;
}

static void wake(tp_task *t) {
  if (!t) return;
  tp_task_wake(t);
  tp_task_unref(t);
}

/* M2: who is to come next, if the state is free. */
static tp_task *next_in(tp_vm *vm) {
  tp_lua_call *c = vm->busy ? NULL : vm->waiting.first;
  if (!c) return NULL;
  unlink_call(&vm->waiting, c);
  c->stage = TP_LUA_COMING;
  return ref_of(c);
}

/* --- without the lock */

bool tp_vm_enter(tp_vm *vm, tp_lua_call *c, bool *broken) {
  tp_lock_acquire(&vm->lock);
  *broken = vm->broken;
  bool had = !vm->busy && !vm->broken;
  if (c->stage == TP_LUA_SUSPENDED) unlink_call(&vm->suspended, c);
  if (c->stage == TP_LUA_WAITING) unlink_call(&vm->waiting, c);
  c->stage = TP_LUA_RUNNING;
  if (had) {
    vm->busy = true;
    vm->thread = pthread_self();
  } else if (!vm->broken) {
    c->stage = TP_LUA_WAITING;
    link_call(&vm->waiting, c);
  }
  tp_lock_release(&vm->lock);
  return had;
}

/* M4 */
static tp_task *suspended_in(tp_vm *vm) {
  tp_lock_acquire(&vm->lock);
  tp_task *t = ref_of(vm->suspended.first);
  tp_lock_release(&vm->lock);
  return t;
}

static void notify(void *arg) {
  tp_vm_mail *m = arg;
  tp_lock_acquire(&m->lock);
  tp_task *t = m->vm ? suspended_in(m->vm) : NULL;
  tp_lock_release(&m->lock);
  wake(t);
}

void tp_vm_leave(tp_vm *vm, tp_lua_call *c) {
  tp_lock_acquire(&vm->lock);
  vm->busy = false;
  if (c) {
    c->stage = TP_LUA_SUSPENDED;
    link_call(&vm->suspended, c);
  } else {
    vm->calls--;
  }
  bool unused = vm->calls == 0 && !vm->shared;
  tp_task *next = next_in(vm), *told = NULL;
  /* M4: who has pushed before this section is seen here, and who pushes later finds c. */
  if (tp_completions_some(vm->env.queue)) told = ref_of(vm->suspended.first);
  tp_lock_release(&vm->lock); /* the state may be gone from here on, unless it is ours */
  wake(next);
  wake(told);
  if (unused) put_back(vm);
}

void tp_vm_wake(tp_lua_call *c) {
  tp_vm *vm = c->vm;
  tp_lock_acquire(&vm->lock);
  tp_task *t = c->stage == TP_LUA_SUSPENDED ? ref_of(c) : NULL;
  tp_lock_release(&vm->lock);
  wake(t);
}

tp_lua_call *tp_vm_dead(tp_vm *vm) {
  tp_lock_acquire(&vm->lock);
  tp_lua_call *c = vm->dead.first;
  if (c) unlink_call(&vm->dead, c);
  tp_store(&vm->any_dead, vm->dead.first != NULL, relaxed);
  tp_lock_release(&vm->lock);
  return c;
}

/* A fresh one is to take its place. */
static void leave_slot(tp_vm *vm) {
  tp_lua *lua = vm->lua;
  tp_lock_acquire(&lua->lock);
  for (unsigned i = 0; i < lua->slots; i++)
    if (lua->slot[i] == vm) lua->slot[i] = NULL;
  tp_lock_release(&lua->lock);
}

/* Lock held; which task is to be woken because c is over. */
static tp_task *next_after(tp_vm *vm, bool coming) {
  if (vm->broken) /* M6: one at a time, each wakes the next when it ends */
    return ref_of(vm->suspended.first ? vm->suspended.first : vm->waiting.first);
  if (coming) return next_in(vm);                                                 /* M2 */
  return tp_completions_some(vm->env.queue) ? ref_of(vm->suspended.first) : NULL; /* M4 */
}

void tp_vm_drop(tp_lua_call *c) {
  tp_vm *vm = c->vm;
  tp_task *task = c->task;
  tp_waits_end(&vm->env, &c->waits);
  tp_lock_acquire(&vm->lock);
  bool breaks = c->stage == TP_LUA_RUNNING && !vm->broken; /* M6; on the thread that had it */
  if (breaks) tp_lua_stop_end(vm);
  bool coming = c->stage == TP_LUA_COMING;
  if (c->stage == TP_LUA_SUSPENDED) unlink_call(&vm->suspended, c);
  if (c->stage == TP_LUA_WAITING) unlink_call(&vm->waiting, c);
  if (breaks) vm->broken = true;
  tp_lock_release(&vm->lock);
  if (breaks) leave_slot(vm);
  tp_lock_acquire(&vm->lock);
  if (breaks) vm->busy = false;
  c->stage = TP_LUA_DEAD;
  link_call(&vm->dead, c);
  tp_store(&vm->any_dead, true, relaxed); /* who has the state takes the lock to look */
  vm->calls--;
  bool unused = vm->calls == 0 && !vm->busy && (vm->broken || !vm->shared);
  tp_task *t = unused ? NULL : next_after(vm, coming);
  tp_lock_release(&vm->lock);
  wake(t);
  tp_task_unref(task);
  if (unused) put_back(vm);
}
