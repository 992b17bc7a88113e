/* protos.h - the bytecode of the functions that were sent to a pool, each kept once and known by a number.
 *
 * So a function travels as four bytes, and a state loads it once. At most TP_PROTOS_MOST of them: a program that makes
 * functions without end sends the later ones whole, every time. Depends on: base/, sync/lock.h. Used by: lua/.
 */
#ifndef TP_LUA_PROTOS_H
#define TP_LUA_PROTOS_H

#include "base/atomic.h"
#include "sync/lock.h"

enum { TP_PROTOS_MOST = 4096 };

typedef struct tp_proto {
  uint32_t hash;
  size_t size;
  char bytecode[];
} tp_proto;

typedef struct tp_protos {
  const void
      *owner; /* constant: what no other one of the process has, also not later (a pool's handle) */
  tp_lock lock; /* of all that is written */
  uint32_t count;
  _Atomic(tp_proto *) at[TP_PROTOS_MOST]; /* by number - 1 */
  uint16_t found[TP_PROTOS_MOST * 2];     /* by hash: a number, 0 is free */
} tp_protos;

/* [any] Its number; 0: there is no room, or no memory. */
uint32_t tp_proto_number(tp_protos *ps, const char *bytecode, size_t size);

/* [any] That of a number that came from there; NULL: there is no such number. */
static inline const tp_proto *tp_proto_at(tp_protos *ps, uint32_t number) {
  return number - 1 < TP_PROTOS_MOST ? tp_load(&ps->at[number - 1], acquire) : NULL;
}

/* [any, nobody uses it any more] */
void tp_protos_free(tp_protos *ps);

#endif
