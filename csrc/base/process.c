#include "base/process.h"

#include "base/error.h"

_Atomic unsigned tp_generation;
_Atomic bool tp_exiting;

int tp_say_forked(void) {
  return tp_say(ERR_FORKED,
                "the pool belongs to the parent: this process was forked; make a pool of its own");
}
