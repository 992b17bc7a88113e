#include "lua/stop.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "sched/guard.h"
#include "sched/stop.h"

enum { TICK_MS = 20, OBJECTS = 512 };

/* Of code that may not be jumped over: all but the host's Lua and ours. A snapshot; kept until the pool is gone, since a
 * signal handler may be reading it. */
typedef struct range {
  uintptr_t begin, end;
} range;

struct tp_lua_code {
  struct tp_lua_code *next;
  unsigned long long adds; /* objects that were loaded by then */
  int count;
  range others[OBJECTS];
};

static _Thread_local tp_vm *running __attribute__((tls_model("initial-exec")));

/* --- the watch: on the reactor */

static bool contains(const struct dl_phdr_info *object, uintptr_t at) {
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &object->dlpi_phdr[i];
    uintptr_t begin = object->dlpi_addr + p->p_vaddr;
    if (p->p_type == PT_LOAD && at >= begin && at < begin + p->p_memsz) return true;
  }
  return false;
}

static void watch(tp_lua *lua);

static int add_object(struct dl_phdr_info *object, size_t size, void *arg) {
  (void)size;
  tp_lua_code *code = arg;
  code->adds = object->dlpi_adds;
  if (contains(object, (uintptr_t)lua_resume) || contains(object, (uintptr_t)watch)) return 0;
  for (int i = 0; i < object->dlpi_phnum && code->count < OBJECTS; i++) {
    const ElfW(Phdr) *p = &object->dlpi_phdr[i];
    if (p->p_type != PT_LOAD || !(p->p_flags & PF_X)) continue;
    uintptr_t begin = object->dlpi_addr + p->p_vaddr;
    code->others[code->count++] = (range){begin, begin + p->p_memsz};
  }
  return 0;
}

static int count_loads(struct dl_phdr_info *object, size_t size, void *arg) {
  (void)size;
  *(unsigned long long *)arg = object->dlpi_adds;
  return 1;
}

/* False: out of memory. */
static bool look_at_code(tp_lua *lua) {
  unsigned long long adds = 0;
  dl_iterate_phdr(count_loads, &adds);
  tp_lua_code *code = tp_load(&lua->code, relaxed); /* only the reactor writes it */
  if (code && code->adds == adds) return true;
  tp_lua_code *fresh = tp_alloc(sizeof *fresh);
  if (!fresh) return false;
  dl_iterate_phdr(add_object, fresh);
  fresh->next = code;
  tp_store(&lua->code, fresh, release); /* pairs with the signal handler's load */
  return true;
}

/* Locks of the pool's states and of this one held. Whether it is to be looked at again. */
static bool look_at(tp_lua *lua, tp_vm *vm, uint64_t now) {
  tp_task *t = vm->busy ? tp_load(&vm->task, acquire) : NULL; /* its memory is the slab's: L1 */
  uint64_t state = t ? tp_load(&t->state, relaxed) : 0; /* a recent one: it is looked at again */
  if (!t || !tp_is_cancelled(state) || tp_lifecycle(state) != TP_RUNNING) {
    vm->told = 0;
    return false;
  }
  uint64_t id = tp_load(&t->record.id, relaxed);
  if (vm->told != id) {
    vm->told = id;
    vm->told_ns = now;
  } else if (now - vm->told_ns >= lua->grace_ns && look_at_code(lua)) {
    tp_stop_thread(vm->thread); /* E2 */
  }
  return true;
}

static void tick(tp_timer *timer) {
  tp_lua *lua = (tp_lua *)((char *)timer - offsetof(tp_lua, timer));
  tp_store(&lua->watching, false, seq_cst); /* then look: who cancels afterwards starts it anew */
  uint64_t now = tp_now_ns();
  bool more = false;
  tp_lock_acquire(&lua->lock);
  for (tp_vm *vm = lua->all; vm; vm = vm->next_of_all) {
    tp_lock_acquire(&vm->lock);
    more = look_at(lua, vm, now) || more;
    tp_lock_release(&vm->lock);
  }
  tp_lock_release(&lua->lock);
  if (more) watch(lua);
}

static void watch(tp_lua *lua) {
  if (tp_swap(&lua->watching, true, seq_cst)) return;
  tp_timer_start(lua->pool->reactor, &lua->timer, tp_now_ns() + TICK_MS * TP_NS_PER_MS, tick);
}

/* E1: somebody has cancelled a task that runs. */
static void on_told(void *lua) {
  watch(lua);
}

void tp_lua_stop_init(tp_lua *lua, unsigned grace_ms) {
  lua->grace_ns = grace_ms * TP_NS_PER_MS;
  tp_tasks_on_told(lua->pool->tasks, on_told, lua);
}

void tp_lua_stop_free(tp_lua *lua) {
  for (tp_lua_code *c = tp_load(&lua->code, relaxed), *next; c; c = next) {
    next = c->next;
    tp_free(c);
  }
}

/* --- on the thread that runs the function: in the signal handler */

#if defined(__x86_64__)
static uintptr_t place_of(const ucontext_t *c) {
  return (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
}
static uintptr_t stack_of(const ucontext_t *c) {
  return (uintptr_t)c->uc_mcontext.gregs[REG_RSP];
}
#elif defined(__aarch64__)
static uintptr_t place_of(const ucontext_t *c) {
  return c->uc_mcontext.pc;
}
static uintptr_t stack_of(const ucontext_t *c) {
  return c->uc_mcontext.sp;
}
#else
static uintptr_t place_of(const ucontext_t *c) {
  (void)c;
  return 0;
}
static uintptr_t stack_of(const ucontext_t *c) {
  (void)c;
  return 0;
}
#endif

/* E4: whether a word of the stack, from there to where we called Lua, points into code of others. What lay there before
 * may look so: then the next signal finds it otherwise. */
static bool others_below(const tp_lua_code *code, uintptr_t from, uintptr_t to) {
  if (from > to || to - from > 1 << 20) return true;
  for (uintptr_t p = from & ~(uintptr_t)7; p < to; p += sizeof(uintptr_t)) {
    uintptr_t word = *(const uintptr_t *)p;
    for (int i = 0; i < code->count; i++)
      if (word >= code->others[i].begin && word < code->others[i].end) return true;
  }
  return false;
}

static void raise_stop(lua_State *L, lua_Debug *ar) {
  (void)ar;
  luaL_error(L, "stopped: it did not end when it was told to");
}

static void on_stop(siginfo_t *info, void *context) {
  (void)info;
  tp_vm *vm = running;
  tp_task *t = vm ? tp_load(&vm->task, relaxed) : NULL; /* our own thread's */
  if (!t || !tp_is_cancelled(tp_load(&t->state, relaxed)) || tp_critical) return;
  uintptr_t at = place_of(context);
  const tp_lua_code *code = tp_load(&vm->lua->code, acquire);
  if (at - vm->machine_code < vm->machine_code_size && code && tp_guard_may_unwind() &&
      !others_below(code, stack_of(context), vm->entry)) {
    vm->stopped = true;
    tp_stop_unblock(context);
    tp_guard_unwind(&(tp_crash){0});
    return; /* never: see there */
  }
  vm->stopped = true;
  lua_sethook(vm->L, raise_stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

/* --- around a function */

void tp_lua_stop_begin(tp_vm *vm, tp_lua_call *c) {
  vm->entry = (uintptr_t)__builtin_frame_address(0);
  running = vm;
  tp_stop_hook = on_stop;
  /* E1: then look; who cancels afterwards finds it. Pairs with the change of the state, then the look in tick. */
  tp_store(&vm->task, c->task, seq_cst);
  if (tp_unlikely(tp_is_cancelled(tp_load(&c->task->state, seq_cst)))) watch(vm->lua);
}

void tp_lua_stop_end(tp_vm *vm) {
  tp_store(&vm->task, NULL, relaxed); /* under the lock it is looked at again */
  running = NULL;
}

bool tp_lua_was_stopped(tp_vm *vm) {
  if (tp_likely(!vm->stopped)) return false;
  lua_sethook(vm->L, NULL, 0, 0);
  vm->stopped = false;
  return true;
}

/* --- machine code */

/* LuaJIT begins each area with a link to the one before, and its size (lj_mcode.c). */
typedef struct area_link {
  void *next;
  size_t size;
} area_link;

enum { AREA_KB = 1024, AREA_SIZE = AREA_KB * 1024, PAGE = 4096 };

/* The mapping that `at` lies in. */
static bool find_mapping(uintptr_t at, uintptr_t *begin) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[512];
  bool found = false;
  while (!found && fgets(line, sizeof line, maps)) {
    char *rest;
    uintptr_t from = strtoull(line, &rest, 16);
    uintptr_t to = *rest == '-' ? strtoull(rest + 1, &rest, 16) : 0;
    found = at >= from && at < to && *rest == ' ' && rest[1] == 'r';
    if (found) *begin = from;
  }
  fclose(maps);
  return found;
}

static bool is_area(uintptr_t at) {
  const area_link *l = (const area_link *)at;
  return l->next == NULL && l->size == AREA_SIZE;
}

/* machine_code(address): of a trace that was just compiled */
static int stop_machine_code(lua_State *L) {
  tp_vm *vm = (tp_vm *)((char *)tp_env_of(L) - offsetof(tp_vm, env));
  double number = lua_tonumber(L, 1);
  uintptr_t at = (uintptr_t)(number < 0 ? number + 18446744073709551616.0 : number), begin;
  if (at - vm->machine_code < vm->machine_code_size) return 0;
  vm->machine_code = vm->machine_code_size = 0;
  if (!find_mapping(at, &begin)) return 0;
  for (uintptr_t p = at & ~(uintptr_t)(PAGE - 1); p >= begin && at - p < AREA_SIZE; p -= PAGE) {
    if (!is_area(p)) continue;
    vm->machine_code = p;
    vm->machine_code_size = AREA_SIZE;
    break;
  }
  return 0;
}

void tp_lua_stop_open(tp_vm *vm, lua_State *L) {
  tp_env_add(&vm->env, L, "machine_code", stop_machine_code);
  lua_pushnumber(L, AREA_KB);
  lua_setfield(L, -2, "MACHINE_CODE_KB");
}

/* libgcc's, if the host has it as a shared object: where the unwinder finds code that was compiled at run time. */
typedef struct unwind_bases {
  void *text, *data, *function;
} unwind_bases;
TP_WEAK const void *_Unwind_Find_FDE(void *pc, unwind_bases *bases);
TP_WEAK void __deregister_frame(const void *begin);

/* Builds of LuaJIT whose errors go through compiled code register each area; what they register follows the link. True:
 * the unwinder does not look there any more. */
static bool deregister(uintptr_t area) {
  if (!_Unwind_Find_FDE || !__deregister_frame) return false;
  unwind_bases bases;
  void *inside = (void *)(area + AREA_SIZE / 2);
  uintptr_t begin = area + sizeof(area_link), found = (uintptr_t)_Unwind_Find_FDE(inside, &bases);
  if (!found) return true;
  uint32_t length =
      *(const uint32_t *)begin; /* of the common part, which the one of the code follows */
  if (found != begin + sizeof length + length) return false;
  __deregister_frame((const void *)begin);
  return !_Unwind_Find_FDE(inside, &bases);
}

void tp_lua_stop_unmap(tp_vm *vm) {
  if (vm->machine_code && is_area(vm->machine_code) && deregister(vm->machine_code))
    munmap((void *)vm->machine_code, AREA_SIZE);
}
