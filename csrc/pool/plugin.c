/* plugin.c - shared objects with handlers. Rules P1..P4: plugin.h. */
#include "pool/plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

int tp_plugins_open(tp_plugins *p, const char *path, const char *file, int line) {
  if (p->count ==
      p->room) { /* first: what dlopen has begun cannot be undone, constructors have run */
    size_t room = p->room ? 2 * p->room : 8;
    void **opened = tp_alloc(room * sizeof *opened);
    if (!opened)
      return tp_say(ERR_MALLOC_FAILED, "%s:%d: handlers=%s: out of memory", file, line, path);
    if (p->count) memcpy(opened, p->opened, p->count * sizeof *opened);
    tp_free(p->opened);
    p->opened = opened;
    p->room = room;
  }
  void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* P4 */
  if (!object) {
    const char *why = dlerror(); /* of this thread */
    return tp_say(ERR_IO, "%s:%d: handlers=%s: expected a shared object that loads: %s", file, line,
                  path, why ? why : "no reason given");
  }
  p->opened[p->count++] = object;
  return 0;
}

/* dlsym also looks into what the object needs: there is a sleep() in the C library. */
static bool is_its_own(void *object, const void *found) {
  struct link_map *map, *where;
  Dl_info info;
  return dlinfo(object, RTLD_DI_LINKMAP, (void *)&map) == 0 &&
         dladdr1(found, &info, (void **)&where, RTLD_DL_LINKMAP) != 0 && where == map;
}

/* And not a variable, nor a mere reference to another object's function. */
static bool is_function(const void *found) {
  const ElfW(Sym) *symbol = NULL;
  Dl_info info;
  if (dladdr1(found, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 || !symbol) return false;
  return symbol->st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC;
}

static void *find_in(void *object, const char *name) {
  void *found = dlsym(object, name);
  return found && is_its_own(object, found) && is_function(found) ? found : NULL;
}

void *tp_plugins_find(const tp_plugins *p, const char *name) {
  void *found = NULL;
  for (size_t i = 0; i < p->count && !found; i++) found = find_in(p->opened[i], name);
  return found;
}

void *tp_plugins_beside(const tp_plugins *p, const void *found, const char *name) {
  for (size_t i = 0; i < p->count; i++)
    if (is_its_own(p->opened[i], found)) return find_in(p->opened[i], name);
  return NULL;
}

void *tp_program_find(const char *name) {
  void *program = dlopen(NULL, RTLD_LAZY), *found = program ? find_in(program, name) : NULL;
  if (program) dlclose(program);
  return found;
}

void tp_plugins_close(tp_plugins *p) {
  while (p->count > 0) dlclose(p->opened[--p->count]);
  tp_free(p->opened);
  *p = (tp_plugins){0};
}
