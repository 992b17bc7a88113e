#include "base/critical.h"

_Thread_local unsigned tp_critical __attribute__((tls_model("initial-exec")));

enum { PAGE = 4096, PAGES = 2 };

/* Page by page from above: a step wider than the guard page would land behind it. */
__attribute__((noinline, no_sanitize("address"))) void tp_stack_probe(void) {
  volatile char room[PAGES * PAGE];
  for (int i = PAGES - 1; i >= 0; i--) room[i * PAGE] = 0;
  (void)room[0];
}
