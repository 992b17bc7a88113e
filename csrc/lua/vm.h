/* vm.h - the Lua states of a pool's workers: who has one, and its beginning and end.
 *
 * A state is used by one thread at a time, whichever worker that is. Each seat has one that it takes first, so that this
 * is the rule; a blocking call, and one that finds its seat's state in use, takes one that no other call has.
 *
 * M1  `busy` says that some thread has the state; only that thread touches it. The lock guards busy, broken, the calls'
 *     stages and the lists, for moments.
 * M2  A call whose state is busy is in `waiting`; who leaves the state wakes one of them. One that was woken and ends
 *     without coming (it was cancelled) passes that on. So a state that is free has nobody waiting, or somebody coming.
 * M3  A coroutine runs only while its call is polled: so the call's record is there, and cannot be taken from under it.
 * M4  The results of what a state has submitted come to its queue. Who has the state looks there first. Who pushes onto
 *     the empty queue wakes one of the suspended calls; a call that was suspended looks at the queue afterwards, and one
 *     that ends passes the wake on. So a result that somebody waits for is looked at.
 * M5  What a call that has ended leaves in the state (its coroutine) is in `dead` until the next one has the state.
 * M6  A state that was left in the middle of something (a crash, a stop) is broken: nobody enters it any more, its calls
 *     end with ERR_LUA, and with the last one its memory goes back whole.
 *
 * Depends on: lua/env.h, lua/memory.h. Used by: lua/.
 */
#ifndef TP_LUA_VM_H
#define TP_LUA_VM_H

#include "lua/env.h"
#include "lua/memory.h"

typedef struct tp_vm tp_vm;
typedef struct tp_lua_code tp_lua_code; /* stop.c */

typedef enum {
  TP_LUA_RUNNING,   /* its thread has the state */
  TP_LUA_SUSPENDED, /* its coroutine has yielded; in `suspended` */
  TP_LUA_WAITING,   /* M2: in `waiting` */
  TP_LUA_COMING,    /* M2: it was woken to take the state */
  TP_LUA_DEAD       /* M5 */
} tp_lua_stage;

/* A call that has begun in a state. */
typedef struct tp_lua_call {
  struct tp_lua_call *next, *prev; /* lock: in the list of its stage */
  tp_vm *vm;
  task_t *call; /* M3 */
  tp_task *task;
  lua_State *co;      /* the coroutine */
  int thread;         /* which keeps it from being collected, as of luaL_ref */
  tp_lua_stage stage; /* lock */
  tp_waits waits;     /* in channels: they end with the call (lua/channel_lua.h) */
} tp_lua_call;

typedef struct tp_lua_list {
  tp_lua_call *first;
} tp_lua_list;

/* Where results for a state come to; it outlives the state while some are expected (N4). */
typedef struct tp_vm_mail {
  struct tp_vm_mail *next; /* of those that are left */
  threadpool_queue *queue;
  tp_lock lock;
  tp_vm *vm; /* lock; NULL: it is gone */
} tp_vm_mail;

/* Functions of lua/threadpool/worker.lua. */
enum { TP_VM_BODY, TP_VM_PUMP, TP_VM_FORGET, TP_VM_FUNCTIONS };

struct tp_vm {
  tp_env env;
  tp_vm_mail *mail;
  tp_lua *lua;
  lua_State *L; /* the main thread of the state */
  tp_memory memory;
  bool shared; /* constant: a seat's, for any number of calls */
  int functions[TP_VM_FUNCTIONS];
  tp_lua_call *current; /* who has it */
  tp_lua_call *spare;   /* records of calls, with their coroutines, for the next ones */
  tp_vm *next;          /* among the idle ones */
  tp_vm *next_of_all, *before_of_all; /* lock of tp_lua */
  /* stop.h */
  _Atomic(tp_task *) task; /* of the function that runs */
  uintptr_t entry;         /* the stack where it was called */
  uintptr_t machine_code;  /* E5; 0: not known */
  size_t machine_code_size;
  bool stopped;           /* its thread writes: E3, E4 */
  uint64_t told, told_ns; /* lock: its id, and since when */
  pthread_t thread;       /* lock: who has it, if busy */
  tp_lock lock;           /* M1: of the rest */
  bool busy, broken;
  unsigned calls; /* begun and not over */
  tp_lua_list waiting, suspended, dead;
  _Atomic bool any_dead; /* written under the lock; a glance */
};

struct tp_lua {
  threadpool_t *pool;
  tp_protos protos;
  tp_mentions mentions; /* K8 */
  char *path, *cpath;   /* of `package` */
  tp_bytes init;        /* a message: the function that each state calls first; may be empty */
  uint64_t grace_ns;    /* E2 */
  tp_timer timer;
  _Atomic bool watching;
  _Atomic(tp_lua_code *) code;
  tp_lock lock; /* of what follows */
  tp_vm *all;
  tp_vm *idle; /* states that no call has */
  unsigned idles;
  tp_vm_mail *left; /* of states that are gone */
  unsigned slots;
  tp_vm **slot; /* by seat */
};

/* [any] What a pool has for Lua. NULL: out of memory. grace_ms: stop.h, E2. */
tp_lua *tp_lua_new(threadpool_t *pool, const char *path, const char *cpath, unsigned grace_ms);
/* [any, after the pool was shut down] Closes the states; what was sent can still be read. */
void tp_lua_close(tp_lua *lua);
/* [any] */
void tp_lua_free(tp_lua *lua);

static inline tp_protos *tp_lua_protos(tp_lua *lua) {
  return &lua->protos;
}

/* [a thread of the pool] A state for a call that begins; it is the caller's until tp_vm_leave, and the call is counted.
 * NULL: after tp_say. */
tp_vm *tp_vm_take(tp_lua *lua, bool blocking);
/* [any] The state of a call that goes on. False: it is busy, and the call is in `waiting`; or broken. */
bool tp_vm_enter(tp_vm *vm, tp_lua_call *c, bool *broken);
/* [who has it] c: suspended; NULL: its call is over, and counted no more. */
void tp_vm_leave(tp_vm *vm, tp_lua_call *c);
/* [any] A call has ended by another's hand, or in the middle of something, or has found its state broken: M2, M4 to M6. */
void tp_vm_drop(tp_lua_call *c);
/* [who has it] What dropped calls have left, one by one; NULL: no more. */
tp_lua_call *tp_vm_dead(tp_vm *vm);
/* [any] Wake c, if it is suspended. */
void tp_vm_wake(tp_lua_call *c);

/* In call.c: the pool's operations for Lua functions; 0, or a code after tp_say. */
int tp_lua_register(tp_lua *lua);
/* In call.c: the functions of a worker's state, into the table on top of the stack. */
void tp_lua_call_open(tp_vm *vm, lua_State *L);
/* In channel.c and elsewhere: what every state has, into the table on top of the stack. */
void tp_module_open(tp_env *env, lua_State *L);

#endif
