local help = dofile "spec/help/common.lua"
local threadpool = require "threadpool"
local raised, line = help.raised, help.line

describe("new", function()
  it("makes a pool with the options of a table", function()
    local pool = assert(threadpool.new { workers = 3, max_pending = 100, window = 4, idle_yield = true, pin = false })
    assert.equal(3, pool:stats().workers)
    assert.equal("threadpool.Pool (3 workers)", tostring(pool))
    pool:close()
  end)

  it("makes one without options, and one with none in the table", function()
    for _, pool in ipairs { assert(threadpool.new()), assert(threadpool.new {}) } do
      assert.is_true(pool:stats().workers >= 1)
      assert.equal(7, pool:spawn(function() return 7 end):await())
      pool:close()
    end
  end)

  it("makes one from a config file", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("thread_count=2\nmax_pending=77\n")
    f:close()
    local pool, err = threadpool.new(path)
    os.remove(path)
    assert.is_nil(err)
    assert.equal(2, pool:stats().workers)
    assert.equal(3, pool:spawn(function(a) return a end, 3):await())
    pool:close()
  end)

  it("gives nil and an error that names the config file that is not there", function()
    local pool, err = threadpool.new "/nowhere/config"
    assert.is_nil(pool)
    assert.equal("ERR_IO", err.name)
    assert.matches("/nowhere/config", err.message, 1, true)
  end)

  it("gives nil and an error that names file, line and key of a config that is wrong", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("# first line\nthread_cuont=2\n")
    f:close()
    local pool, err = threadpool.new(path)
    os.remove(path)
    assert.is_nil(pool)
    assert.matches(path .. ":2", err.message, 1, true)
    assert.matches("thread_cuont", err.message, 1, true)
  end)

  it("gives nil and an error for a number out of range", function()
    local pool, err = threadpool.new { workers = -2 }
    assert.is_nil(pool)
    assert.equal("ERR_INVALID_ARGUMENT", err.name)
    assert.matches("workers is -2", err.message, 1, true)
  end)

  it("raises at the caller's line for an option that is not known, or of a wrong type", function()
    local here = line() + 1
    local err = raised(function() threadpool.new { wrokers = 2 } end)
    assert.matches("pool_spec.lua:" .. here .. ": threadpool.new: unknown option 'wrokers'", err, 1, true)
    assert.matches("option 'workers': expected a whole number",
      raised(function() threadpool.new { workers = "2" } end), 1, true)
    assert.matches("option 'workers'", raised(function() threadpool.new { workers = 1.5 } end), 1, true)
    assert.matches("option 'max_pending'", raised(function() threadpool.new { max_pending = -1 } end), 1, true)
    assert.matches("option 'idle_yield': expected true or false",
      raised(function() threadpool.new { idle_yield = 1 } end), 1, true)
    assert.matches("option 'init': a function expected", raised(function() threadpool.new { init = 5 } end), 1, true)
    assert.matches("a table of options or the path of a config file expected, got number",
      raised(function() threadpool.new(5) end), 1, true)
  end)

  it("refuses an init whose upvalue cannot travel, by name", function()
    local co = coroutine.create(print)
    local err = raised(function() threadpool.new { workers = 1, init = function() return co end } end)
    assert.matches("upvalue 'co' of the function that begins at spec/pool_spec.lua", err, 1, true)
  end)
end)

describe("two pools", function()
  it("keep their results apart", function()
    local one, two = threadpool.new { workers = 1 }, threadpool.new { workers = 1 }
    local tasks = {}
    for i = 1, 100 do
      tasks[#tasks + 1] = one:spawn(function(n) return "one", n end, i)
      tasks[#tasks + 1] = two:spawn(function(n) return "two", n end, i)
    end
    for i = 1, 100 do
      assert.same({ "one", i }, { tasks[2 * i - 1]:await(10) })
      assert.same({ "two", i }, { tasks[2 * i]:await(10) })
    end
    one:close()
    two:close()
  end)

  it("keep partial results apart", function()
    local one, two = threadpool.new { workers = 1 }, threadpool.new { workers = 1 }
    local function emit(name)
      for i = 1, 20 do require "threadpool".emit(name .. i) end
    end
    local a, b = one:spawn(emit, "a"), two:spawn(emit, "b")
    for i = 1, 20 do
      assert.equal("a" .. i, a:next())
      assert.equal("b" .. i, b:next())
    end
    one:close()
    two:close()
  end)
end)

describe("submit", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close() end)

  it("takes a table", function()
    assert.equal('{"data":"hello"}', pool:submit { op = "echo", args = { data = "hello" } }:await())
  end)

  it("takes JSON text", function()
    assert.equal('{"data":"hello"}', pool:submit '{"op":"echo","args":{"data":"hello"}}':await())
  end)

  it("gives true for a request whose result has no data", function()
    assert.is_true(pool:submit { op = "sleep", args = { ms = 1 } }:await())
  end)

  it("gives ERR_INVALID_JSON for text that is no JSON, with the place", function()
    for _, text in ipairs { "{", "", "nonsense", '{"op":"echo"}\0' } do
      local value, err = pool:submit(text):await()
      assert.is_nil(value)
      assert.equal("ERR_INVALID_JSON", err.name)
      assert.matches("byte", err.message)
    end
  end)

  it("gives an error that names an unknown operation", function()
    local value, err = pool:submit { op = "no_such_thing" }:await()
    assert.is_nil(value)
    assert.equal("ERR_UNKNOWN_OPCODE", err.name)
    assert.matches("no_such_thing", err.message, 1, true)
  end)

  it("gives an error that names an unknown member", function()
    local _, err = pool:submit { op = "echo", agrs = {} }:await()
    assert.matches("agrs", err.message, 1, true)
  end)

  it("refuses operation lua, which takes its function from spawn", function()
    local value, err = pool:submit { op = "lua" }:await()
    assert.is_nil(value)
    assert.matches("pool:spawn", err.message, 1, true)
  end)

  it("raises at the caller's line for anything else than a table or text", function()
    local here = line() + 1
    local err = raised(function() pool:submit(5) end)
    assert.matches("pool_spec.lua:" .. here .. ": submit: a table or JSON text expected, got number", err, 1, true)
    assert.matches("submit: a table or JSON text expected, got nil", raised(function() pool:submit() end), 1, true)
  end)

  it("raises at the caller's line for a table that is not JSON, and names the place in it", function()
    local here = line() + 1
    local err = raised(function() pool:submit { op = "echo", args = { data = print } } end)
    assert.matches("pool_spec.lua:" .. here .. ": submit: args.data: a function cannot be written as JSON", err, 1,
      true)
  end)

  it("raises for an unknown option", function()
    local here = line() + 1
    local err = raised(function() pool:submit({ op = "echo" }, { nowiat = true }) end)
    assert.matches("pool_spec.lua:" .. here .. ": submit: unknown option 'nowiat'", err, 1, true)
    assert.matches("option 'on_result': a function expected, got number",
      raised(function() pool:submit({ op = "echo" }, { on_result = 5 }) end), 1, true)
  end)
end)

describe("at max_pending", function()
  local pool
  local function sleep(ms) return { op = "sleep", args = { ms = ms } } end
  before_each(function() pool = threadpool.new { workers = 1, max_pending = 4 } end)
  after_each(function() pool:close { drain = 0 } end)

  it("submit and spawn with nowait give nil and ERR_QUEUE_FULL", function()
    for _ = 1, 4 do assert(pool:submit(sleep(60000), { nowait = true })) end
    local task, err = pool:submit(sleep(1), { nowait = true })
    assert.is_nil(task)
    assert.equal("ERR_QUEUE_FULL", err.name)
    task, err = pool:spawn({ nowait = true }, function() end)
    assert.is_nil(task)
    assert.equal("ERR_QUEUE_FULL", err.name)
    assert.matches("max_pending", tostring(err), 1, true)
  end)

  it("submit and spawn wait for room otherwise", function()
    local tasks = {}
    for i = 1, 40 do
      tasks[i] = i % 2 == 0 and pool:submit(sleep(1)) or pool:spawn(function(n) return n end, i)
      assert.is_true(pool:stats().pending <= 4)
    end
    for i = 1, 40 do
      local value = i
      if i % 2 == 0 then value = true end
      assert.equal(value, tasks[i]:await())
    end
  end)

  it("Lua functions on workers that submit, as do those they submit, all find room", function()
    local function nest(here, self, depth)
      if depth == 0 then return 1 end
      local a = assert(here:spawn(self, here, self, depth - 1))
      local b = assert(here:spawn(self, here, self, depth - 1))
      return a:await() + b:await()
    end
    local tasks = {}
    for i = 1, 12 do tasks[i] = pool:spawn({ timeout = 20 }, nest, pool, nest, 4) end
    for i = 1, 12 do assert.equal(16, (tasks[i]:await())) end
  end)

  it("a coroutine that waits for room lets the others go on", function()
    local order = {}
    threadpool.run(function()
      threadpool.go(function()
        for _ = 1, 8 do pool:submit(sleep(5)) end
        order[#order + 1] = "all submitted"
      end)
      threadpool.go(function() order[#order + 1] = "other" end)
    end)
    assert.same({ "other", "all submitted" }, order)
  end)

  it("a program that submits many and keeps the results works: what has come counts no more", function()
    local tasks = {}
    for i = 1, 2000 do tasks[i] = pool:spawn(function(n) return n * 2 end, i) end
    for i = 1, 2000 do assert.equal(i * 2, tasks[i]:await()) end
  end)
end)

describe("close", function()
  it("is true once, and false when it is closed already", function()
    local pool = threadpool.new { workers = 1 }
    assert.is_true(pool:close())
    assert.is_false(pool:close())
    assert.equal("threadpool.Pool (closed)", tostring(pool))
  end)

  it("lets what is under way finish", function()
    local pool = threadpool.new { workers = 1 }
    local tasks = {}
    for i = 1, 20 do tasks[i] = pool:spawn(function(n) require "threadpool".sleep(0.01) return n end, i) end
    pool:close { drain = 60 }
    for i = 1, 20 do assert.equal(i, tasks[i]:await()) end
  end)

  it("cancels what has not finished when the time is over; nothing that awaits it hangs", function()
    local pool = threadpool.new { workers = 1 }
    local slow = pool:submit { op = "sleep", args = { ms = 600000 } }
    local lua = pool:spawn(function() require "threadpool".sleep(600) end)
    local called
    slow:on { on_error = function(err) called = err.name end }
    pool:close { drain = 0 }
    for _, task in ipairs { slow, lua } do
      local value, err = task:await()
      assert.is_nil(value)
      assert.is_true(err.name == "ERR_CANCELLED" or err.name == "ERR_SHUTDOWN", err.name)
    end
    assert.is_truthy(called)
  end)

  it("makes submit and spawn give nil and ERR_SHUTDOWN with a remedy, and the rest raise at the caller", function()
    local pool = threadpool.new { workers = 1 }
    local task = pool:spawn(function() end)
    pool:close()
    for _, f in ipairs { function() return pool:submit { op = "echo" } end, function() return pool:spawn(print) end } do
      local value, err = f()
      assert.is_nil(value)
      assert.equal("ERR_SHUTDOWN", err.name)
      assert.matches("threadpool.new", tostring(err), 1, true)
    end
    local here = line() + 1
    assert.matches("pool_spec.lua:" .. here .. ": the pool is closed", raised(function() pool:stats() end), 1, true)
    assert.is_false(task:cancel())
    assert.equal("done", task:status())
    task:detach()
  end)

  it("raises for a drain that is no time", function()
    local pool = threadpool.new { workers = 1 }
    local here = line() + 1
    local err = raised(function() pool:close { drain = -1 } end)
    assert.matches("pool_spec.lua:" .. here .. ": close: option 'drain': seconds expected", err, 1, true)
    assert.matches("close: a table of options expected", raised(function() pool:close(5) end), 1, true)
    assert.is_true(pool:close())
  end)

  it("may be called by a callback and by a coroutine", function()
    local pool = threadpool.new { workers = 1 }
    local closed
    pool:spawn({ on_result = function() closed = pool:close() end }, function() end)
    assert.is_true(help.eventually(pool, function() return closed ~= nil end))
    assert.is_true(closed)
    pool = threadpool.new { workers = 1 }
    assert.is_true(threadpool.run(function()
      pool:spawn(function() end):await()
      return pool:close()
    end))
  end)

  it("is done for a pool that nobody has any more", function()
    local function threads()
      local n = 0
      for _ in io.popen("ls /proc/" .. io.open("/proc/self/stat"):read("*n") .. "/task"):lines() do n = n + 1 end
      return n
    end
    collectgarbage()
    collectgarbage()
    local before = threads()
    local pool = threadpool.new { workers = 4 }
    pool:spawn(function() end):await()
    pool:submit { op = "sleep", args = { ms = 600000 } }
    assert.is_true(threads() >= before + 4)
    pool = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    -- A thread of its own does it, since a collector must not wait.
    local deadline = os.time() + 30
    while threads() > before and os.time() < deadline do end
    assert.is_true(threads() <= before)
  end)
end)

describe("fd and pump", function()
  local pool
  setup(function() pool = threadpool.new { workers = 1 } end)
  teardown(function() pool:close() end)

  it("the descriptor is readable while pump has something to do, and not otherwise", function()
    local fd = assert(pool:fd())
    assert.equal(fd, pool:fd())
    pool:pump()
    assert.is_false(help.readable(fd, 0))
    for i = 1, 3 do
      local got
      pool:spawn({ on_result = function(n) got = n end }, function(n) return n + 1 end, i)
      assert.is_true(help.readable(fd, 10))
      assert.is_nil(got)
      assert.is_true(pool:pump())
      assert.equal(i + 1, got)
      assert.is_false(help.readable(fd, 0))
    end
  end)

  it("pump says whether there was something", function()
    assert.is_false(pool:pump())
    assert.is_false(pool:pump(0.01))
    local task = pool:spawn(function() end)
    assert.is_true(pool:pump(10))
    assert.is_true(task:poll())
    pool:spawn(function() end) -- that nobody has
    assert.is_true(help.readable(pool:fd(), 10))
    assert.is_true(pool:pump())
  end)
end)

describe("stats", function()
  it("counts workers and what is pending, of all or of one worker", function()
    local pool = threadpool.new { workers = 2 }
    local task = pool:submit { op = "sleep", args = { ms = 60000 } }
    local stats = pool:stats()
    assert.equal(2, stats.workers)
    assert.equal(1, stats.pending)
    for k, v in pairs(stats) do
      assert.is_string(k)
      assert.is_number(v)
    end
    assert.is_table(pool:stats(2))
    task:cancel()
    task:wait()
    assert.equal(0, pool:stats().pending)
    local here = line() + 1
    local err = raised(function() pool:stats(5000) end)
    assert.matches("pool_spec.lua:" .. here, err, 1, true)
    assert.matches("no such worker", err, 1, true)
    pool:close()
  end)
end)

describe("handles that are dropped", function()
  -- What is under way at once decides how large the tables of the module become: so the first round is not compared.
  local function level(n, submit)
    local pool = threadpool.new { workers = 2 }
    local sizes = {}
    for round = 1, 3 do
      for i = 1, n do submit(pool, i) end
      assert.is_true(help.eventually(pool, function() return pool:stats().pending == 0 end))
      collectgarbage()
      collectgarbage()
      sizes[round] = collectgarbage "count"
    end
    pool:close()
    assert.is_true(sizes[3] < sizes[1] + 1000, ("%d, %d, %d KB"):format(sizes[1], sizes[2], sizes[3]))
  end

  it("leave nothing behind", function()
    level(35000, function(pool, i) pool:spawn(function(x) return x, "text" end, i) end)
  end)

  it("leave nothing behind that had callbacks, and all of those are called", function()
    local called = 0
    local options = { on_result = function() called = called + 1 end }
    level(10000, function(pool, i) pool:spawn(options, function(x) return x end, i) end)
    assert.equal(30000, called)
  end)

  it("leave nothing behind when they were detached", function()
    level(10000, function(pool, i) pool:spawn(function(x) return x end, i):detach() end)
  end)

  it("leave nothing behind that were requests", function()
    level(10000, function(pool) pool:submit '{"op":"echo","args":{"data":"x"}}' end)
  end)
end)

describe("what is called with something else than it takes", function()
  local pool
  before_each(function() pool = threadpool.new { workers = 1 } end)
  after_each(function() pool:close() end)

  local function says(message, fn)
    local ok, err = pcall(fn)
    assert.is_false(ok)
    local at = debug.getinfo(fn, "S").linedefined
    assert.equal(("%s:%d: %s"):format(debug.getinfo(1, "S").short_src, at, message), err)
  end

  it("says so at the line of its caller", function()
    local task = pool:spawn(function() end)
    says("pump: seconds expected, got string", function() local _ = pool:pump "1 s" end)
    says("pump: seconds expected, got table", function() local _ = threadpool.pump {} end)
    says("stats: the number of a worker expected, got table", function() local _ = pool:stats {} end)
    says("await: seconds expected, got string", function() local _ = task:await "1 s" end)
    says("wait: seconds expected, got table", function() local _ = task:wait {} end)
    says("sleep: seconds expected, got nil", function() threadpool.sleep() end)
    says("on_error: a function expected, got string", function() threadpool.on_error "print" end)
    says("submit: a table of options expected, got number", function() local _ = pool:stream({ op = "echo" }, 5) end)
    says("spawn: unknown option 'x'", function() local _ = pool:stream({ x = 1 }, print) end)
  end)

  it("stream names the line that called it when the function fails", function()
    local at = debug.getinfo(1, "l").currentline + 1
    local next_part = pool:stream(function() error "on purpose" end)
    local _, err = pcall(next_part)
    assert.matches(("submitted at spec/pool_spec.lua:%d"):format(at), err.traceback, 1, true)
  end)
end)
