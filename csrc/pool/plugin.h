/* plugin.h - finds handler functions by name: in shared objects that the config names, and in the program itself.
 *
 *   P1  Plug-ins are asked in the order in which they were opened. The program is asked by itself
 *       (tp_program_find): names that are built in come between the two. What it is linked with is not asked: there is an
 *       exit() in the C library.
 *   P2  A plug-in's names are its own (RTLD_LOCAL): two may define the same one, the first is found.
 *       What is found is a function.
 *   P3  Everything a plug-in needs is there when it is opened (RTLD_NOW), not missing at the first request.
 *   P4  What was found stays valid until the process ends: a result that is freed after its pool is gone may have its
 *       release function in a plug-in, and a plug-in may have threads. So one that was replaced on disk is not read anew.
 *
 * A program shows its own functions only if it was linked with -rdynamic, and they are not static.
 * Depends on: base/. [any] thread; one tp_plugins belongs to one thread at a time, _find may be called by many.
 */
#ifndef TP_POOL_PLUGIN_H
#define TP_POOL_PLUGIN_H

#include <stddef.h>

/* All zero: none. */
typedef struct tp_plugins {
  void **opened; /* of dlopen */
  size_t count, room;
} tp_plugins;

/* `file` and `line` are where the path was given, for the message. The path has a slash, or the system looks for it
 * where it looks for libraries. 0; ERR_IO: it cannot be loaded; ERR_MALLOC_FAILED. */
int tp_plugins_open(tp_plugins *p, const char *path, const char *file, int line);

/* The function, to be cast to its type; NULL: no plug-in has one of this name. */
void *tp_plugins_find(const tp_plugins *p, const char *name);
/* Another one of the plug-in that has `found`; NULL: that has none of this name, or is the program. */
void *tp_plugins_beside(const tp_plugins *p, const void *found, const char *name);
/* As tp_plugins_find, in the program itself. */
void *tp_program_find(const char *name);

/* All zero, and twice are allowed. */
void tp_plugins_close(tp_plugins *p);

#endif
