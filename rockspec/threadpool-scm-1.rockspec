rockspec_format = "3.0"
package = "threadpool"
version = "scm-1"

-- Where it will be published; `luarocks make` builds what lies here and does not ask.
source = {
  url = "git+https://example.org/threadpool.git",
  branch = "main",
}

description = {
  summary = "Work in parallel from LuaJIT: Lua functions and JSON requests on a work-stealing thread pool",
  detailed = [[
    Runs Lua functions on worker threads (arguments, results and upvalues are copied), and requests in JSON.
    Waiting yields in coroutines, and works in the event loops of others. Linux, LuaJIT 2.1.
  ]],
  labels = { "thread", "parallel", "async", "luajit" },
  license = "MIT",
}

supported_platforms = { "linux" }

-- The ABI and the language of LuaJIT 2.1; another Lua is refused when the module is loaded.
dependencies = { "lua == 5.1" }

-- Debian: libyyjson-dev. Elsewhere than in the system's directories: luarocks make YYJSON_DIR=/path
external_dependencies = {
  YYJSON = { header = "yyjson.h", library = "yyjson" },
}

build = {
  type = "make",
  build_target = "rock",
  install_target = "install-rock",
  build_variables = {
    CFLAGS = "$(CFLAGS)",
    YYJSON_INCDIR = "$(YYJSON_INCDIR)",
    YYJSON_LIBDIR = "$(YYJSON_LIBDIR)",
  },
  install_variables = {
    INST_LIBDIR = "$(LIBDIR)",
    INST_LUADIR = "$(LUADIR)",
  },
  copy_directories = { "docs" },
}
