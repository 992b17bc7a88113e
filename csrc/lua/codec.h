/* codec.h - Lua values as bytes, to travel between states of one process.
 *
 * A message is a number of values, then the bodies of the objects (tables and functions) that they mention, in the order
 * in which they were mentioned first; a body mentions further ones. So there is no recursion, whatever the nesting, and
 * shared objects and cycles come out as they went in:
 *
 *   message  count:u32 value* body*     the top bit of count: there are objects
 *   value    NIL | FALSE | TRUE | NUMBER f64 | STRING size:u32 bytes | POINTER u64
 *          | TABLE items:u32            the next object: its body comes later
 *          | FUNCTION number:u32        the same; 0: size:u32 bytecode follow
 *          | PLAIN number:u32           one without upvalues: no object, and no body
 *          | SAME object:u32            the object with this number, counted from 1
 *          | NAMED text                 what is loaded under that name on both sides: "string", "math.floor"
 *          | PACKED module message:u32+bytes   an object of a class that says how it travels (below)
 *          | CHANNEL record:u64 serial:u64     a mention of a channel (lua/channel.h), also listed in `mentions`
 *   body     of a table: items:u32, so many values, then key value pairs, then END; of a function: its upvalues, then END
 *
 * text and module are STRINGs without the tag. Numbers are in the machine's own order: a message never leaves it.
 *
 * A table with a metatable travels if that has a field `__threadpool`: the name of a module whose `pack(object)` makes
 * plain values of it, and whose `unpack(...)` makes an object of those. Others are refused, as are coroutines, userdata,
 * C functions that no loaded module has. What the FFI makes travels as module threadpool.cdata says.
 *
 * Each state has one codec. Errors are raised as Lua errors, so all of it is called from Lua.
 * Depends on: lua/bytes.h, lua/protos.h. Used by: lua/.
 */
#ifndef TP_LUA_CODEC_H
#define TP_LUA_CODEC_H

#include "lua/bytes.h"
#include "lua/lua_api.h"
#include "lua/protos.h"

typedef struct tp_codec_slot {
  const void *object;
  uint32_t number;
  uint32_t round; /* of the message it belongs to */
} tp_codec_slot;

/* Whose value is being written: for messages. */
typedef struct tp_origin {
  uint32_t value; /* of the message's values, from 1 */
  int32_t line;   /* of the function's definition; 0: it is not in a function */
  const char *name;
  char source[60];
} tp_origin;

typedef struct tp_codec {
  tp_bytes out;
  const char *what; /* what the values are: "argument" */
  tp_bytes
      mentions; /* of channels, in the message that was written last: who sends it keeps them (K6, K8) */
  /* the rest is the codec's own */
  int names, numbers,
      loaded; /* tables of the state, as of luaL_ref: codec.c says what is in them */
  const void
      *last; /* the function that was written last, if it is PLAIN; kept alive at `last_ref` */
  uint32_t last_number;
  int last_ref;
  uint32_t read_number; /* the PLAIN function that was read last, at `read_ref`; 0: none */
  int read_ref;
  const void *owner;    /* whose functions `numbers`, `loaded` and `last` are about */
  int owners;           /* of each owner, the table with these two */
  bool learned;         /* `names` holds the modules that were loaded then */
  tp_codec_slot *slots; /* the objects of this message, by address */
  uint32_t slot_count, objects, round;
  uint32_t *origins; /* of each object: a value's number, or SITE and an index into `sites` */
  tp_origin *sites;
  uint32_t origin_room, site_count, site_room;
  struct tp_codec *inner; /* for what is packed */
  const void
      *writer; /* the thread and the stack frame that write, or did when an error was raised */
  uintptr_t frame;
  struct tp_codec *nested; /* for what is written meanwhile */
} tp_codec;

/* Makes what a state's codec needs; the codec is zero before. Raises. */
void tp_codec_open(tp_codec *c, lua_State *L);

/* The codec for a message that begins now, empty: c; or another one if c is in the middle of a message, as a finalizer or
 * a `pack` sends something. `what` is what its values are. Its output and mentions are there until Lua code runs again.
 * Raises. */
tp_codec *tp_codec_begin(tp_codec *c, lua_State *L, const char *what);

/* Writes values first..last of the stack to c->out, after what is there. protos NULL, here and below: functions are sent
 * whole. */
void tp_codec_write(tp_codec *c, lua_State *L, tp_protos *protos, int first, int last);

/* [any] Whether a message is one number: many are. */
bool tp_codec_number(const char *data, size_t size, double *n);

/* Pushes the values of a message; returns how many. */
int tp_codec_read(tp_codec *c, lua_State *L, tp_protos *protos, const char *data, size_t size);

/* [any] Whether a message is one value that cannot fail to be read: a number, say. */
bool tp_codec_simple(const char *data, size_t size);

/* [any, the state is not used any more] */
void tp_codec_free(tp_codec *c);

#endif
