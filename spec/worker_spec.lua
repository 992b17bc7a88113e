local help = dofile "spec/help/common.lua"
local ffi = require "ffi"
local threadpool = require "threadpool"
local emit, cancelled, sleep = threadpool.emit, threadpool.cancelled, threadpool.sleep
local raised, line = help.raised, help.line

describe("on a worker", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2, window = 4 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("submit, spawn, await and sleep work as outside", function()
    local task = pool:spawn(function()
      local echo = threadpool.submit { op = "echo", args = { a = 1 } }:await()
      local sum = threadpool.spawn(function(a, b) return a + b end, 1, 2):await()
      sleep(0.01)
      return echo, sum, threadpool.here():spawn(function() return "deep" end):await()
    end)
    assert.same({ '{"a":1}', 3, "deep" }, { task:await() })
  end)

  it("what only a program may do is refused by name", function()
    local function refused(what)
      local here = threadpool.here()
      local does = { new = threadpool.new, close = function() here:close() end, fd = function() here:fd() end,
        region = function() here:region("r", 8) end }
      return select(2, pcall(does[what]))
    end
    assert.matches("threadpool.new: a worker has its pool", pool:spawn(refused, "new"):await())
    assert.matches("close: a worker cannot close its pool", pool:spawn(refused, "close"):await())
    assert.matches("fd: a worker has no event loop of others", pool:spawn(refused, "fd"):await())
    assert.matches("region: make it in the program", pool:spawn(refused, "region"):await())
  end)

  it("spawns within spawns, 50 deep, on one worker", function()
    local one = threadpool.new { workers = 1 }
    local function dive(n)
      if n == 0 then return "bottom" end
      return threadpool.spawn(dive, n - 1):await()
    end
    assert.equal("bottom", one:spawn(dive, 50):await())
    one:close()
  end)

  it("many nested ones at once", function()
    local function fib(n)
      if n < 2 then return n end
      local a, b = threadpool.spawn(fib, n - 1), threadpool.spawn(fib, n - 2)
      return a:await() + b:await()
    end
    assert.equal(610, pool:spawn(fib, 15):await())
  end)

  it("run, go and streams work", function()
    local task = pool:spawn(function()
      local order = {}
      threadpool.go(function()
        sleep(0.02)
        order[#order + 1] = "slept"
      end)
      threadpool.go(function()
        for part in threadpool.stream { op = "echo", args = { parts = { "a", "b" } } } do order[#order + 1] = part end
      end)
      sleep(0.1)
      threadpool.run(function()
        threadpool.go(function() order[#order + 1] = threadpool.spawn(function() return "in run" end):await() end)
      end)
      return unpack(order)
    end)
    assert.same({ "a", "b", "slept", "in run" }, { task:await() })
  end)

  it("a task is over when the coroutines that it has started are", function()
    local task = pool:spawn(function()
      threadpool.go(function()
        sleep(0.02)
        emit "late"
      end)
      return "early"
    end)
    assert.equal("late", task:next())
    assert.equal("early", task:await())
  end)

  it("coroutines of a task that fails do not disturb the next ones", function()
    for i = 1, 50 do
      local task = pool:spawn(function()
        threadpool.go(function() sleep(0.001) end)
        threadpool.go(function() threadpool.spawn(function() end):await() end)
        threadpool.go(function() end)
        threadpool.spawn(function() end):await()
        error("failed", 0)
      end)
      local _, err = task:await()
      assert.equal("failed", err.message)
      assert.equal(i, pool:spawn(function(n) sleep(0.0001) return n end, i):await(10))
    end
  end)

  it("await with seconds gives up, and a loop of such awaits leaves nothing behind", function()
    local task = pool:spawn(function()
      local slow = threadpool.submit { op = "sleep", args = { ms = 3600000 } }
      local _, err = slow:await(0.01)
      slow:cancel()
      for _ = 1, 200 do threadpool.spawn(function() end):await(3600) end
      return err.name
    end)
    assert.equal("ERR_TIMEOUT", task:await())
  end)

  it("10,000 tasks that all wait run on two workers", function()
    local tasks, sum = {}, 0
    for i = 1, 10000 do
      tasks[i] = pool:spawn(function(n)
        sleep(0.05)
        return n
      end, i)
    end
    for i = 1, 10000 do sum = sum + tasks[i]:await() end
    assert.equal(50005000, sum)
  end)

  it("10,000 tasks that all await another one run on two workers", function()
    local tasks, sum = {}, 0
    for i = 1, 10000 do
      tasks[i] = pool:spawn(function(n) return threadpool.spawn(function(m) return m + 1 end, n):await() end, i)
    end
    for i = 1, 10000 do sum = sum + tasks[i]:await() end
    assert.equal(50015000, sum)
  end)

  it("a task that only yields lets others of its worker go on", function()
    local one = threadpool.new { workers = 1 }
    local endless = one:spawn(function() while not cancelled() do coroutine.yield() end return "told" end)
    assert.equal(1, one:spawn(function() return 1 end):await(30))
    endless:cancel()
    local value, err = endless:await()
    assert.is_true(value == "told" or err.name == "ERR_CANCELLED")
    endless = one:spawn(function()
      threadpool.go(function() while not cancelled() do coroutine.yield() end end)
      sleep(3600)
    end)
    assert.equal(1, one:spawn(function() return 1 end):await(30))
    endless:cancel()
    endless:wait()
    one:close()
  end)

  it("cancelled() says whether the task was asked to end", function()
    local task = pool:spawn(function()
      assert(not cancelled())
      emit "runs"
      while not cancelled() do end -- luacheck: ignore 542
      return "cleaned up"
    end)
    assert.equal("runs", task:next())
    assert.is_true(task:cancel())
    local value, err = task:await()
    assert.is_true(value == "cleaned up" or err.name == "ERR_CANCELLED")
  end)

  it("task_id is the id of the task", function()
    local task = pool:spawn(function() return threadpool.task_id() end)
    assert.equal(task.id, task:await())
  end)

  it("new and close raise, as does a plain misuse, with the worker's line", function()
    local _, err = pool:spawn(function() threadpool.new() end):await()
    assert.matches("worker_spec.lua:%d+: threadpool.new: a worker has its pool", err.message)
    _, err = pool:spawn(function() pool:close() end):await()
    assert.matches("worker_spec.lua:%d+: close: a worker cannot close its pool", err.message)
    assert.equal(2, pool:spawn(function() return 2 end):await())
    _, err = pool:spawn(function() threadpool.spawn(5) end):await()
    assert.matches("worker_spec.lua:%d+: spawn: a function expected", err.message)
  end)

  it("emit, cancelled and task_id raise at the caller's line where there is no task", function()
    for _, name in ipairs { "emit", "cancelled", "task_id" } do
      local here = line() + 1
      local err = raised(function() threadpool[name](1) end)
      assert.matches("worker_spec.lua:" .. here .. ": " .. name .. ": it is for functions on a worker", err, 1, true)
    end
  end)

  it("coroutines of the function's own can wait, too", function()
    local task = pool:spawn(function()
      local co = coroutine.wrap(function()
        coroutine.yield(threadpool.spawn(function() return 1 end):await())
        sleep(0.001)
        coroutine.yield(2)
      end)
      return co(), co()
    end)
    assert.same({ 1, 2 }, { task:await() })
  end)

  it("globals and loaded modules of a state stay for the next tasks", function()
    local one = threadpool.new { workers = 1 }
    one:spawn(function() _G.counter = 1 end):await()
    assert.equal(1, one:spawn(function() return _G.counter end):await())
    one:close()
  end)
end)

describe("require on a worker", function()
  it("finds what the program finds: pure Lua and C modules", function()
    local pool = threadpool.new { workers = 2 }
    assert.equal("a,b", pool:spawn(function() return table.concat(require "pl.List" { "a", "b" }, ",") end):await())
    assert.equal("directory", pool:spawn(function() return require "lfs".attributes(".", "mode") end):await())
    assert.is_number(pool:spawn(function() return require "socket".gettime() end):await())
    local lfs = require "lfs"
    assert.equal("directory", pool:spawn(function() return lfs.attributes(".", "mode") end):await())
    pool:close()
  end)

  it("of a module that is not there is an error that lists where it was looked for", function()
    local pool = threadpool.new { workers = 1 }
    local _, err = pool:spawn(function() require "no_such_module" end):await()
    assert.matches("no_such_module", err.message, 1, true)
    assert.matches("no file", err.message, 1, true)
    pool:close()
  end)

  it("goes by the paths that the program had when it made the pool", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(require "lfs".mkdir(dir))
    local f = io.open(dir .. "/spec_only_here.lua", "w")
    f:write "return { value = 42 }"
    f:close()
    local before = package.path
    package.path = dir .. "/?.lua;" .. before
    local pool = threadpool.new { workers = 1 }
    package.path = before
    assert.equal(42, pool:spawn(function() return require "spec_only_here".value end):await())
    pool:close()
    os.remove(dir .. "/spec_only_here.lua")
    os.remove(dir)
  end)
end)

describe("init", function()
  it("runs once in each state, before anything else there, with its upvalues", function()
    local greeting = "hello"
    local pool = threadpool.new { workers = 2, init = function()
      _G.greeting = greeting
      _G.inits = (_G.inits or 0) + 1
    end }
    for _ = 1, 20 do
      assert.same({ "hello", 1 }, { pool:spawn(function() return _G.greeting, _G.inits end):await() })
      assert.same({ "hello", 1 },
        { pool:spawn({ blocking = true }, function() return _G.greeting, _G.inits end):await() })
    end
    pool:close()
  end)

  it("that fails is what each task reports, and the pool goes on", function()
    local pool = threadpool.new { workers = 1, init = function() error "no database" end }
    for _ = 1, 3 do
      local value, err = pool:spawn(function() return 1 end):await()
      assert.is_nil(value)
      assert.equal("ERR_LUA", err.name)
      assert.matches("init: spec/worker_spec.lua:%d+: no database", err.message)
    end
    assert.equal("{}", pool:submit { op = "echo", args = {} }:await())
    pool:close()
  end)
end)

describe("emit", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2, window = 4 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("sends any value that can travel, in order", function()
    local task = pool:spawn(function()
      emit(1)
      emit { a = { 1, 2 } }
      emit "text\0"
      emit(false)
      return emit(function() return 7 end)
    end)
    assert.equal(1, task:next())
    assert.same({ a = { 1, 2 } }, task:next())
    assert.equal("text\0", task:next())
    assert.is_false(task:next())
    assert.equal(7, task:next()())
    assert.is_nil(task:next())
    assert.is_true(task:await())
  end)

  it("of nil, or of what cannot travel, raises at the caller's line", function()
    local _, err = pool:spawn(function() emit(nil) end):await()
    assert.matches("worker_spec.lua:%d+: emit: a value expected, got nil", err.message)
    _, err = pool:spawn(function() emit(coroutine.create(print)) end):await()
    assert.matches("worker_spec.lua:%d+: partial result 1: a coroutine cannot be sent", err.message)
  end)

  it("waits while the window is full: other tasks of that worker go on", function()
    local one = threadpool.new { workers = 1, window = 4 }
    local task = one:spawn(function()
      for i = 1, 100 do emit(i) end
      return "all"
    end)
    for i = 1, 20 do assert.equal(i, one:spawn(function(n) return n end, i):await()) end
    assert.is_false(task:poll())
    for i = 1, 100 do assert.equal(i, task:next()) end
    assert.equal("all", task:await())
    one:close()
  end)

  it("waits in coroutines of the task as well, and in others", function()
    local task = pool:spawn(function()
      for _, name in ipairs { "a", "b" } do
        threadpool.go(function() for i = 1, 20 do emit(name .. i) end end)
      end
      local co = coroutine.wrap(function() for i = 1, 20 do emit("c" .. i) end end)
      co()
    end)
    local seen = { a = 0, b = 0, c = 0 }
    for part in task:partials() do
      local name, i = part:match "(.)(%d+)"
      assert.equal(seen[name] + 1, tonumber(i))
      seen[name] = tonumber(i)
    end
    assert.same({ a = 20, b = 20, c = 20 }, seen)
    assert.equal(0, select("#", task:await()))
  end)

  it("is false when nobody wants it any more", function()
    local told = threadpool.new { workers = 1, window = 2 }
    local path = os.tmpname()
    local task = told:spawn(function()
      local n = 0
      while emit(n) do n = n + 1 end
      local f = io.open(path, "w")
      f:write "ended"
      f:close()
    end)
    task:next()
    task:cancel()
    task:wait()
    told:close()
    os.remove(path)
    assert.equal("done", task:status())
  end)
end)

describe("without a task, in a worker's state", function()
  it("what only a task can do raises: in an init function, in a finalizer when the pool is closed", function()
    local function ask()
      local tp, said = require "threadpool", {}
      for _, name in ipairs { "cancelled", "emit", "task_id" } do
        local ok, why = pcall(tp[name], 1)
        said[#said + 1] = not ok and why:match "no task runs here" or "nothing"
      end
      return table.concat(said, ",")
    end
    local told = "no task runs here,no task runs here,no task runs here"
    local path = os.tmpname()
    local one = threadpool.new { workers = 1, init = function() _G.said = ask() end }
    assert.equal(told, one:spawn(function()
      _G.last = newproxy(true)
      getmetatable(_G.last).__gc = function()
        local file = io.open(path, "w")
        file:write(ask())
        file:close()
      end
      return _G.said
    end):await())
    one:close()
    local file = io.open(path)
    assert.equal(told, file:read("*a"))
    file:close()
    os.remove(path)
  end)
end)

describe("a crash", function()
  local function crash() ffi.cast("int*", 8)[0] = 1 end

  it("in a function is ERR_HANDLER_CRASH, and the pool goes on", function()
    local pool = threadpool.new { workers = 2 }
    for i = 1, 20 do
      local value, err = pool:spawn(crash):await()
      assert.is_nil(value)
      assert.equal("ERR_HANDLER_CRASH", err.name)
      assert.matches("SIGSEGV", err.message, 1, true)
      assert.equal(i, pool:spawn(function(n) return n end, i):await())
    end
    pool:close()
  end)

  it("in the __tostring of an error is one as well", function()
    local pool = threadpool.new { workers = 1 }
    local waiting = pool:spawn(function() sleep(3600) end)
    while waiting:status() ~= "waiting" do pool:pump(0.01) end
    local _, err = pool:spawn(function() error(setmetatable({}, { __tostring = crash })) end):await(30)
    assert.equal("ERR_HANDLER_CRASH", err.name)
    assert.equal("ERR_LUA", select(2, waiting:await(30)).name)
    assert.equal(1, pool:spawn(function() return 1 end):await(30))
    pool:close()
  end)

  it("ends the others that wait in the same state with an error that says so; nobody hangs", function()
    local pool = threadpool.new { workers = 1 }
    local waiting = {}
    for i = 1, 20 do waiting[i] = pool:spawn(function() sleep(3600) end) end
    assert.is_true(help.eventually(pool, function()
      for i = 1, 20 do if waiting[i]:status() ~= "waiting" then return false end end
      return true
    end))
    local _, err = pool:spawn(crash):await()
    assert.equal("ERR_HANDLER_CRASH", err.name)
    for i = 1, 20 do
      _, err = waiting[i]:await(30)
      assert.equal("ERR_LUA", err.name)
      assert.matches("crashed or was stopped", err.message, 1, true)
    end
    assert.equal(1, pool:spawn(function() return 1 end):await())
    pool:close()
  end)

  it("of a nested task, in the state of the one that awaits it, ends both", function()
    local pool = threadpool.new { workers = 1 }
    local _, err = pool:spawn(function() return threadpool.spawn(crash):await() end):await(30)
    assert.equal("ERR_LUA", err.name)
    assert.equal(1, pool:spawn(function() return 1 end):await())
    pool:close()
  end)

  it("of a blocking function harms nobody else", function()
    local pool = threadpool.new { workers = 1 }
    local waiting = pool:spawn(function() sleep(0.1) return "fine" end)
    local _, err = pool:spawn({ blocking = true }, crash):await()
    assert.equal("ERR_HANDLER_CRASH", err.name)
    assert.equal("fine", waiting:await())
    pool:close()
  end)
end)
