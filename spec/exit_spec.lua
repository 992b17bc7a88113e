package.path = "spec/help/?.lua;" .. package.path
local child = require "child"

-- What each program begins with.
local BEGIN = [[
local threadpool = require "threadpool"
local function busy(seconds)
  local until_then = os.clock() + seconds
  while os.clock() < until_then do end
end
local function add(a, b) return a + b end
]]

-- 1,000 tasks: some run, some wait for a timer, most have not begun.
local IN_FLIGHT = BEGIN .. [[
local pool = threadpool.new { workers = 2 }
local tasks = {}
for i = 1, 1000 do
  if i % 3 == 0 then tasks[i] = pool:submit { op = "sleep", args = { ms = 60000 } }
  elseif i % 3 == 1 then tasks[i] = pool:spawn(add, i, 1)
  else tasks[i] = pool:spawn(function() require "threadpool".sleep(60) end)
  end
end
]]

-- A signal to this very process, a moment later, while it does something else.
local SIGNAL = [[
local ffi = require "ffi"
ffi.cdef "int getpid(void); int unsetenv(const char *name);"
ffi.C.unsetenv "LD_PRELOAD" -- as in spec/help/child.lua
local function signal_soon(name)
  return assert(io.popen(("sleep 0.05; kill -%s %d"):format(name, ffi.C.getpid())))
end
]]

describe("a program with 1,000 tasks in flight", function()
  it("ends well when its text ends", function()
    child.always(IN_FLIGHT, { code = 0, out = "", err = "" })
  end)

  it("ends well when its text ends and nobody has the pool any more", function()
    child.always(IN_FLIGHT .. "pool, tasks = nil, nil", { code = 0, out = "", err = "" })
  end)

  it("ends by os.exit(0)", function()
    child.always(IN_FLIGHT .. "os.exit(0)", { code = 0, out = "", err = "" })
  end)

  it("ends by os.exit(0, true), which closes the Lua state", function()
    child.always(IN_FLIGHT .. "os.exit(0, true)", { code = 0, out = "", err = "" })
  end)

  it("keeps the status that it gives to os.exit", function()
    child.always(IN_FLIGHT .. "os.exit(3)", { code = 3, err = "" })
    child.always(IN_FLIGHT .. "os.exit(3, true)", { code = 3, err = "" })
    child.always(IN_FLIGHT .. "os.exit(false, true)", { code = 1, err = "" })
  end)

  it("ends with status 1 and a traceback when an error reaches its top", function()
    child.always(IN_FLIGHT .. "error 'on purpose'", { code = 1, out = "", err = "on purpose\nstack traceback:" })
  end)

  it("ends by os.exit in a coroutine of run", function()
    child.always(IN_FLIGHT .. "threadpool.run(function() tasks[1]:await() os.exit(4) end)", { code = 4, err = "" })
  end)

  it("ends by os.exit in a callback", function()
    child.always(IN_FLIGHT .. [[
      pool:spawn({ on_result = function() os.exit(5, true) end }, add, 1, 2)
      tasks[3]:await()
    ]], { code = 5, err = "" })
  end)

  it("says that it was interrupted when Ctrl-C comes while it awaits", function()
    child.always(IN_FLIGHT .. SIGNAL .. "signal_soon 'INT' tasks[3]:await()", { code = 1, err = "interrupted!" })
  end)

  it("says that it was interrupted when Ctrl-C comes in a coroutine that awaits", function()
    child.always(IN_FLIGHT .. SIGNAL .. "signal_soon 'INT' threadpool.run(function() tasks[3]:await() end)",
      { code = 1, err = "interrupted!" })
  end)

  it("says that it was interrupted when Ctrl-C comes while it pumps", function()
    child.always(IN_FLIGHT .. SIGNAL .. "signal_soon 'INT' while true do pool:pump(60) end",
      { code = 1, err = "interrupted!" })
  end)

  it("is interrupted at once also when Ctrl-C comes just before it waits", function()
    local ended = child.run([[
      local threadpool = require "threadpool"
      local core = require "threadpool.core"
      local ffi = require "ffi"
      ffi.cdef [=[
        struct tp_event { long value; int signo, notify; long room[6]; };
        int timer_create(int clock, struct tp_event *event, void **timer);
        int timer_settime(void *timer, int flags, const long *when, long *old);
        void *signal(int signo, void *handler);
      ]=]
      local C = ffi.C
      jit.off()
      local handler = C.signal(2, nil)
      C.signal(2, handler)
      local timer = ffi.new "void *[1]"
      assert(C.timer_create(1, ffi.new("struct tp_event", { signo = 2 }), timer) == 0)
      local function signal_in(ns)
        assert(C.timer_settime(timer[0], 0, ffi.new("long[4]", { 0, 0, 0, ns }), nil) == 0)
      end
      local pool = threadpool.new { workers = 2 }
      local waits = {
        function() pool:pump(20) end,
        function() pool:submit({ op = "sleep", args = { ms = 20000 } }):await() end,
        function() threadpool.run(function() threadpool.sleep(20) end) end,
      }
      for i = 1, 100 do
        local begin = core.now()
        local ok, err = pcall(function()
          signal_in(math.random(1000, 120000))
          while true do waits[i % 3 + 1]() end
        end)
        C.signal(2, handler)
        assert(not ok and tostring(err):find "interrupted!", tostring(err))
        local took = core.now() - begin
        assert(took < 5, ("it took %g s to be interrupted"):format(took))
      end
    ]])
    assert.same({ code = 0, out = "", err = "" }, ended)
  end)

  it("says that it was interrupted when Ctrl-C comes in a callback", function()
    local busy = "pool:spawn({ on_result = function() while true do end end }, add, 1, 2) tasks[3]:await()"
    child.always(IN_FLIGHT .. SIGNAL .. "jit.off() signal_soon 'INT' " .. busy, { code = 1, err = "interrupted!" })
  end)

  it("says that it was interrupted when Ctrl-C comes in a coroutine of go", function()
    child.always(IN_FLIGHT .. SIGNAL .. [[
      jit.off()
      signal_soon 'INT'
      threadpool.go(function() while true do end end)
      tasks[3]:await()
    ]], { code = 1, err = "interrupted!" })
  end)

  it("is killed by SIGTERM", function()
    child.always(IN_FLIGHT .. SIGNAL .. "signal_soon 'TERM' tasks[3]:await()", { code = 128 + 15 })
  end)
end)

describe("a worker's Lua function", function()
  it("may end the process, with a status of its own", function()
    child.always(BEGIN .. [[
      local pool = threadpool.new { workers = 2 }
      pool:spawn(function() os.exit(6) end):await()
    ]], { code = 6, err = "" })
  end)

  it("that takes its time does not hold up the end of the program", function()
    local long = BEGIN .. [[
      local pool = threadpool.new { workers = 2 }
      local task = pool:spawn(function() while true do end end)
      while task:status() ~= "running" do end
    ]]
    child.always(long, { code = 0, err = "" })
    child.always(long .. "os.exit(0)", { code = 0, err = "" })
    child.always(long .. "os.exit(0, true)", { code = 0, err = "" })
    child.always(long .. "error 'on purpose'", { code = 1, err = "on purpose" })
  end)
end)

describe("a pool", function()
  it("can be closed twice; the second time says so", function()
    child.always(BEGIN .. [[
      local pool = threadpool.new { workers = 2 }
      assert(pool:spawn(add, 1, 2):await() == 3)
      assert(pool:close() == true)
      assert(pool:close() == false)
    ]], { code = 0, err = "" })
  end)

  it("can be forgotten", function()
    child.always(BEGIN .. "threadpool.new { workers = 2 }", { code = 0, err = "" })
    child.always(BEGIN .. "assert(threadpool.spawn(add, 1, 2):await() == 3)", { code = 0, err = "" })
  end)

  it("that is dropped with tasks in flight is closed by the collector, and the program goes on", function()
    child.always(IN_FLIGHT .. [[
      pool, tasks = nil, nil
      for _ = 1, 3 do collectgarbage() end
      local other = threadpool.new { workers = 2 }
      assert(other:spawn(add, 1, 2):await() == 3)
      other:close()
    ]], { code = 0, err = "" })
  end)

  it("that is dropped leaves no thread behind", function()
    child.always([[local threadpool = require "threadpool"
      local ffi = require "ffi"
      local function threads()
        for line in io.lines "/proc/self/status" do
          local n = line:match "^Threads:%s*(%d+)"
          if n then return tonumber(n) end
        end
      end
      threadpool.new():close()
      local before = threads() -- a sanitizer has one of its own
      do
        local pool = threadpool.new { workers = 4 }
        assert(pool:spawn(function() return 1 end):await() == 1)
        for i = 1, 100 do pool:spawn(function() require "threadpool".sleep(60) end) end
      end
      ffi.cdef "int usleep(unsigned);"
      for _ = 1, 500 do
        collectgarbage()
        if threads() == before then os.exit(0) end
        ffi.C.usleep(10000)
      end
      error(threads() .. " threads, " .. before .. " before")
    ]], { code = 0, err = "" })
  end)
end)

describe("a forked child", function()
  local FORK = [[
    local ffi = require "ffi"
    ffi.cdef "int fork(void); int waitpid(int pid, int *status, int options); unsigned alarm(unsigned);"
    jit.off()
    local function in_child(fn)
      io.stdout:flush()
      local pid = ffi.C.fork()
      if pid == 0 then
        ffi.C.alarm(8)
        local ok, err = pcall(fn)
        if not ok then io.stderr:write("child: ", tostring(err), "\n") end
        os.exit(ok and 7 or 8)
      end
      return function()
        local status = ffi.new "int[1]"
        assert(ffi.C.waitpid(pid, status, 0) == pid)
        assert(status[0] == 7 * 256, ("the child ended with wait status 0x%x"):format(status[0]))
      end
    end
  ]]

  it("is told that the pool is its parent's", function()
    child.always(IN_FLIGHT .. FORK .. [[
      local ended = in_child(function()
        local task, err = pool:spawn(add, 1, 2)
        if task then task, err = task:await(5) end
        assert(not task and err.name == "ERR_FORKED", tostring(err))
        task, err = pool:submit { op = "echo" }
        if task then task, err = task:await(5) end
        assert(not task and err.name == "ERR_FORKED", tostring(err))
      end)
      ended()
      assert(pool:spawn(add, 1, 2):await() == 3)
    ]], { code = 0, err = "" })
  end)

  it("does not wait for ever for what its parent has submitted", function()
    child.always(IN_FLIGHT .. FORK .. [[
      in_child(function()
        local value, err = tasks[3]:await(5)
        assert(value == nil and err.name == "ERR_FORKED", tostring(err))
      end)()
    ]], { code = 0, err = "" })
  end)

  it("has a pool of its own, while its parent goes on with its", function()
    child.always(IN_FLIGHT .. FORK .. [[
      local ended = in_child(function()
        local own = threadpool.new { workers = 2 }
        for i = 1, 50 do assert(own:spawn(add, i, 2):await() == i + 2) end
        own:close()
      end)
      for i = 1, 50 do assert(pool:spawn(add, i, 1):await() == i + 1) end
      ended()
    ]], { code = 0, err = "" })
  end)

  it("may close, collect and forget what was its parent's", function()
    child.always(IN_FLIGHT .. FORK .. [[
      in_child(function() pool:close { drain = 0 } end)()
      in_child(function() pool, tasks = nil, nil collectgarbage() collectgarbage() end)()
      in_child(function() os.exit(7, true) end)()
      assert(pool:spawn(add, 1, 2):await() == 3)
    ]], { code = 0, err = "" })
  end)
end)

describe("two Lua states of one process", function()
  local SECOND = [[
    local ffi = require "ffi"
    ffi.cdef [=[
      typedef struct lua_State lua_State;
      lua_State *luaL_newstate(void);
      void luaL_openlibs(lua_State *L);
      int luaL_loadstring(lua_State *L, const char *s);
      int lua_pcall(lua_State *L, int nargs, int nresults, int errfunc);
      const char *lua_tolstring(lua_State *L, int i, size_t *len);
      void lua_close(lua_State *L);
    ]=]
    jit.off() -- what is called comes back into Lua
    local C = ffi.C
    local function run(L, text)
      if C.luaL_loadstring(L, text) ~= 0 or C.lua_pcall(L, 0, 0, 0) ~= 0 then
        error(ffi.string(C.lua_tolstring(L, -1, nil)))
      end
    end
    local other = C.luaL_newstate()
    C.luaL_openlibs(other)
    run(other, ("package.path, package.cpath = %q, %q"):format(package.path, package.cpath))
    local USE = [=[
      threadpool = require "threadpool"
      pool = pool or threadpool.new { workers = 2 }
      assert(pool:spawn(function(a, b) return a * b end, 6, 7):await() == 42)
    ]=]
  ]]

  it("both require it, and end in either order", function()
    child.always(SECOND .. [[
      run(other, USE)
      loadstring(USE)()
      run(other, USE)
      C.lua_close(other)
      loadstring(USE)()
    ]], { code = 0, err = "" })
    child.always(SECOND .. "loadstring(USE)() run(other, USE)", { code = 0, err = "" })
  end)

  it("leave the library in memory when both are closed", function()
    child.always(SECOND .. [[
      for _ = 1, 3 do
        run(other, USE)
        C.lua_close(other)
        other = C.luaL_newstate()
        C.luaL_openlibs(other)
        run(other, ("package.path, package.cpath = %q, %q"):format(package.path, package.cpath))
      end
    ]], { code = 0, err = "" })
  end)
end)

describe("a module that is loaded again", function()
  local RELOAD = BEGIN .. [[
    local function reload()
      for name in pairs(package.loaded) do
        if name:find "^threadpool" then package.loaded[name] = nil end
      end
      return require "threadpool"
    end
  ]]

  it("works as the first one did, which goes on working", function()
    child.always(RELOAD .. [[
      local pool = threadpool.new { workers = 2 }
      local again = reload()
      assert(again ~= threadpool)
      local other = again.new { workers = 2 }
      for _ = 1, 20 do
        assert(other:spawn(add, 1, 2):await() == 3)
        assert(pool:spawn(add, 1, 2):await() == 3)
      end
      other:close()
      pool:close()
    ]], { code = 0, err = "" })
  end)

  it("does not lose what the first one waits for", function()
    child.always(RELOAD .. [[
      local pool = threadpool.new { workers = 2 }
      local first = pool:spawn(add, 1, 2)
      local again = reload()
      local other = again.new { workers = 2 }
      local second = other:spawn(add, 3, 4)
      assert(second:await(5) == 7)
      assert(first:await(5) == 3)
    ]], { code = 0, err = "" })
  end)

  it("finds functions of its own on workers, whichever of the two they are of", function()
    child.always(RELOAD .. [[
      local pool = threadpool.new { workers = 2 }
      local function emitter(emit) return function() emit(1) return 2 end end
      local function check(emit)
        local task = pool:spawn(emitter(emit))
        assert(task:await(5) == 2)
        assert(task:next() == 1)
      end
      check(threadpool.emit)
      local again = reload()
      check(again.emit)
      check(threadpool.emit)
      pool:close()
    ]], { code = 0, err = "" })
  end)

  it("by busted's insulation, again and again", function()
    for _ = 1, 5 do
      for name in pairs(package.loaded) do
        if name:find "^threadpool" then package.loaded[name] = nil end
      end
      local pool = assert(require "threadpool".new { workers = 2 })
      assert.equal(3, pool:spawn(function(a, b) return a + b end, 1, 2):await())
      pool:close()
    end
  end)
end)
