local threadpool = require "threadpool"

local pool

setup(function() pool = assert(threadpool.new { workers = 2 }) end)
teardown(function() pool:close { drain = 1 } end)

-- Generous: only against hangs.
local LONG = 20

local function value_of(value) return value end
local function fail(message) error(message, 0) end
-- Ends only if it is cancelled.
local function for_ever()
  local tp = require "threadpool"
  tp.channel(1):receive()
end

local function raised(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "it should have raised an error")
  return err
end

local function nothing_is_left()
  local deadline = os.time() + 10
  while pool:stats().pending > 0 and os.time() < deadline do pool:pump(0.01) end
  return pool:stats().pending == 0
end

-- Each of these in the program itself, in a coroutine, and on a worker: f is sent there.
local function everywhere(name, f)
  it(name, function() f() end)
  it(name .. ", in a coroutine", function() threadpool.run(f) end)
  it(name .. ", on a worker", function()
    local _, err = pool:spawn(f):await(LONG)
    assert.is_nil(err, err and tostring(err) .. "\n" .. tostring(err.traceback))
  end)
end

describe("a group", function()
  everywhere("returns what its function returns, when all has ended", function()
    local tp = require "threadpool"
    local ended = {}
    local a, b, c = tp.group(function(g)
      local one = g:spawn(function(x) return x end, 1)
      local two = g:submit { op = "echo", args = { x = 2 } }
      g:go(function()
        tp.sleep(0.02)
        ended[1] = true
      end)
      return one:await(), two:await(), nil
    end)
    assert(a == 1 and b == '{"x":2}' and c == nil)
    assert(ended[1])
  end)

  everywhere("fails with the first error, and cancels the rest", function()
    local tp = require "threadpool"
    local long, value, err
    value, err = tp.group(function(g)
      long = g:spawn(function() require("threadpool").channel(1):receive() end)
      g:go(function() tp.sleep(1000) end)
      g:spawn(function() error("boom", 0) end)
      tp.sleep(1000)
    end)
    assert(value == nil and err.name == "ERR_LUA" and err.message == "boom", tostring(err))
    assert(long:status() == "done")
    assert(select(2, long:await()).name == "ERR_CANCELLED")
  end)

  everywhere("that is left by an error has cancelled all, and returns the error", function()
    local tp = require "threadpool"
    local long
    local value, err = tp.group(function(g)
      long = g:spawn(function() require("threadpool").channel(1):receive() end)
      error "left"
    end)
    assert(value == nil and err.name == "ERR_LUA" and err.message:find("left", 1, true))
    assert(err.traceback:find("stack traceback", 1, true))
    assert(long:status() == "done")
  end)

  everywhere("has a deadline", function()
    local tp = require "threadpool"
    local long
    local value, err = tp.group(function(g)
      long = g:spawn(function() require("threadpool").channel(1):receive() end)
      g:submit { op = "sleep", args = { ms = 1000000 } }
      g:go(function() tp.channel(1):receive() end)
      assert(g:left() <= 0.05 and g:left() > 0)
      tp.sleep(1000)
    end, { timeout = 0.05 })
    assert(value == nil and err.name == "ERR_TIMEOUT", tostring(err))
    assert(long:status() == "done")
  end)

  everywhere("ends with the one it is in", function()
    local tp = require "threadpool"
    local inner_err
    local value, err = tp.group(function(outer)
      outer:go(function()
        local _
        _, inner_err = tp.group(function(inner)
          inner:spawn(function() require("threadpool").channel(1):receive() end)
          inner:go(function() tp.sleep(1000) end)
          tp.sleep(1000)
        end)
      end)
      tp.sleep(0.01)
      outer:spawn(function() error("outside", 0) end)
    end)
    assert(value == nil and err.message == "outside", tostring(err))
    assert(inner_err == err)
  end)

  it("leaves the one it is in alone when it fails", function()
    local value, err = threadpool.group(function(outer)
      local _, inner_err = threadpool.group(function(inner)
        inner:spawn(fail, "inside")
        threadpool.sleep(1000)
      end)
      assert.equal("inside", inner_err.message)
      return outer:spawn(value_of, "goes on"):await()
    end)
    assert.is_nil(err)
    assert.equal("goes on", value)
  end)

  it("has no more time than the one it is in", function()
    local begin = os.time()
    local _, err = threadpool.group(function()
      threadpool.group(function(inner)
        assert.is_true(inner:left() <= 0.05)
        threadpool.sleep(1000)
      end, { timeout = 1000 })
      threadpool.sleep(1000)
    end, { timeout = 0.05 })
    assert.equal("ERR_TIMEOUT", err.name)
    assert.is_true(os.time() - begin < LONG)
  end)

  it("hands its deadline down to the tasks", function()
    local stopped
    threadpool.group(function(g)
      local task = g:spawn({ priority = "high" }, for_ever)
      local request = g:submit { op = "sleep", args = { ms = 1000000 } }
      -- Nobody looks here for so long, and the tasks end by themselves.
      local until_ = os.clock() + 0.3
      while os.clock() < until_ do end
      stopped = { select(2, task:await()), select(2, request:await()) }
      error(stopped[1], 0)
    end, { timeout = 0.1 })
    assert.equal("ERR_TIMEOUT", stopped[1].name)
    assert.equal("ERR_TIMEOUT", stopped[2].name)
  end)

  it("does not fail when a task of it is cancelled on purpose", function()
    local value, err = threadpool.group(function(g)
      local long = g:spawn(for_ever)
      long:cancel()
      local task, i = threadpool.first({ g:spawn(for_ever), g:spawn(value_of, 7) }, { cancel = true })
      assert.equal(2, i)
      return task:await()
    end)
    assert.is_nil(err)
    assert.equal(7, value)
  end)

  it("starts nothing once it has failed", function()
    local _, err = threadpool.group(function(g)
      g:spawn(fail, "boom"):wait()
      local task, why = g:spawn(value_of, 1)
      assert.is_nil(task)
      assert.equal("boom", why.message)
      assert.is_nil((g:go(value_of)))
      assert.is_nil((g:submit { op = "echo" }))
    end)
    assert.equal("boom", err.message)
  end)

  it("can be used until it has ended", function()
    local kept
    threadpool.group(function(g) kept = g end)
    assert.matches("spawn: the group has ended", raised(kept.spawn, kept, value_of))
    assert.matches("go: the group has ended", raised(kept.go, kept, value_of))
    assert.matches("group_spec.lua:", raised(function() kept:submit { op = "echo" } end))
  end)

  it("gives what a coroutine returns, and its error", function()
    local _
    local a, b, err = threadpool.group(function(g)
      local task = g:go(function(x, y) return x + y, x * y end, 3, 4)
      return task:await()
    end)
    assert.same({ 7, 12 }, { a, b })
    assert.is_nil(err)
    _, err = threadpool.group(function(g) g:go(fail, "boom") end)
    assert.equal("boom", err.message)
    local object = {}
    _, err = threadpool.group(function(g) g:go(error, object) end)
    assert.equal(object, err.value)
  end)

  it("waits for a coroutine that does not want to end", function()
    local cleaned
    local _, err = threadpool.group(function(g)
      g:go(function()
        g:spawn(fail, "boom")
        local ok = pcall(threadpool.sleep, 1000)
        assert.is_false(ok)
        cleaned = true
      end)
    end)
    assert.equal("boom", err.message)
    assert.is_true(cleaned)
  end)

  it("cancels who waits in a channel, and loses nothing", function()
    local ch = threadpool.channel(1)
    local _, err = threadpool.group(function(g)
      g:go(function() ch:receive() end)
      g:spawn(function(c) c:receive() end, ch)
      g:spawn(fail, "boom")
    end)
    assert.equal("boom", err.message)
    ch:send "kept"
    assert.equal("kept", ch:receive(LONG))
  end)

  it("says where a task was submitted", function()
    local line
    local _, err = threadpool.group(function(g)
      line = debug.getinfo(1, "l").currentline + 1
      g:spawn(fail, "boom")
    end)
    assert.matches(("submitted at .*group_spec.lua:%d"):format(line), err.traceback)
  end)

  it("takes many", function()
    local sum = 0
    local _, err = threadpool.group(function(g)
      for i = 1, 2000 do g:spawn(value_of, i):on { on_result = function(x) sum = sum + x end } end
    end)
    assert.is_nil(err)
    assert.equal(2001000, sum)
    assert.is_true(nothing_is_left())
  end)

  it("refuses what its pool refuses, at the line of the caller", function()
    threadpool.group(function(g)
      local co = coroutine.create(print)
      local here = "^spec/group_spec.lua:" .. debug.getinfo(1, "l").currentline + 1 .. ": "
      local function misuse(kind, what) return raised(function() local _ = g[kind](g, what) end) end
      assert.matches(here .. "submit: a table or JSON text expected, got number", misuse("submit", 5))
      assert.matches(here .. "submit: f: a function cannot", misuse("submit", { f = print }))
      assert.matches(here .. "spawn: a function expected", misuse("spawn", {}))
      assert.matches(here .. "spawn: a function expected", misuse("spawn", 5))
      assert.matches("^spec/group_spec.lua:%d+: upvalue 'co'", misuse("spawn", function() return co end))
    end, { pool = pool })
  end)

  it("refuses what is no function and what are no options", function()
    assert.matches("group: function expected", raised(threadpool.group))
    assert.matches("group: a table of options expected", raised(threadpool.group, value_of, 5))
    assert.matches("timeout: seconds expected", raised(threadpool.group, value_of, { timeout = 0 }))
    assert.matches("timeout: seconds expected", raised(threadpool.group, value_of, { timeout = "1" }))
  end)
end)

describe("first", function()
  everywhere("returns the task that ended, and its place", function()
    local tp = require "threadpool"
    local long = tp.spawn(function() require("threadpool").channel(1):receive() end)
    local quick = tp.spawn(function() return 5 end)
    local task, i = tp.first { long, quick }
    assert(task == quick and i == 2)
    assert(task:await() == 5)
    assert(long:status() ~= "done")
    long:cancel()
  end)

  it("takes one that has ended already", function()
    local done = pool:spawn(value_of, 1)
    done:await()
    local long = pool:spawn(for_ever)
    assert.equal(done, (threadpool.first { long, done }))
    long:cancel()
  end)

  it("also takes one that failed, unless told otherwise", function()
    local failed, long = pool:spawn(fail, "boom"), pool:spawn(for_ever)
    assert.equal(failed, (threadpool.first { failed, long }))
    local good = pool:spawn(function()
      require("threadpool").sleep(0.02)
      return 1
    end)
    assert.equal(good, (threadpool.first({ failed, long, good }, { success = true })))
    local task, i = threadpool.first({ failed, pool:spawn(fail, "bang") }, { success = true })
    assert.equal(2, i)
    assert.equal("bang", select(2, task:await()).message)
    long:cancel()
  end)

  it("cancels the others if told so", function()
    local long = pool:spawn(for_ever)
    threadpool.first({ pool:spawn(value_of, 1), long }, { cancel = true })
    assert.equal("ERR_CANCELLED", select(2, long:await(LONG)).name)
  end)

  it("has a timeout", function()
    local long = pool:spawn(for_ever)
    local task, err = threadpool.first({ long }, { timeout = 0.01 })
    assert.is_nil(task)
    assert.equal("ERR_TIMEOUT", err.name)
    long:cancel()
  end)

  it("refuses what is no list of tasks", function()
    assert.matches("first: a list of tasks expected", raised(threadpool.first))
    assert.matches("first: a list of tasks expected", raised(threadpool.first, {}))
    assert.matches("first: a list of tasks expected, got a number at 1", raised(threadpool.first, { 5 }))
  end)
end)

describe("all", function()
  everywhere("returns the results in order", function()
    local tp = require "threadpool"
    local results = assert(tp.all {
      tp.spawn(function()
        require("threadpool").sleep(0.02)
        return "slow"
      end),
      tp.spawn(function() return nil end),
      tp.spawn(function() return "quick", "second" end),
    })
    assert(results.n == 3 and results[1] == "slow" and results[2] == nil and results[3] == "quick")
  end)

  it("takes none, and many, and those that have ended", function()
    assert.same({ n = 0 }, threadpool.all {})
    local tasks, expected = {}, { n = 1000 }
    for i = 1, 1000 do tasks[i], expected[i] = pool:spawn(value_of, i), i end
    assert.same(expected, (threadpool.all(tasks)))
    assert.same(expected, (threadpool.all(tasks)))
  end)

  it("returns the error of the first that fails, and its place, at once", function()
    local long = pool:spawn(for_ever)
    local results, err, i = threadpool.all { pool:spawn(value_of, 1), long, pool:spawn(fail, "boom") }
    assert.is_nil(results)
    assert.equal("boom", err.message)
    assert.equal(3, i)
    assert.not_equal("done", long:status())
    results, err = threadpool.all({ long, pool:spawn(fail, "boom") }, { cancel = true })
    assert.is_nil(results)
    assert.equal("boom", err.message)
    assert.equal("ERR_CANCELLED", select(2, long:await(LONG)).name)
  end)

  it("has a timeout", function()
    local long = pool:spawn(for_ever)
    local results, err = threadpool.all({ long }, { timeout = 0.01, cancel = true })
    assert.is_nil(results)
    assert.equal("ERR_TIMEOUT", err.name)
    assert.equal("ERR_CANCELLED", select(2, long:await(LONG)).name)
  end)
end)

describe("join", function()
  it("returns the first result of each function, in order", function()
    assert.same({ 1, "two", n = 3 }, (function(...) return { n = select("#", ...), ... } end)(pool:join(
      function() return 1 end, function() return "two", 2 end, function() end)))
    assert.equal(0, select("#", pool:join()))
  end)

  it("returns the error of one that fails, with its number, and cancels the others", function()
    local ch = threadpool.channel(1)
    local value, err, i = pool:join(function() ch:receive() end, function() error("boom", 0) end)
    assert.is_nil(value)
    assert.equal("boom", err.message)
    assert.equal(2, i)
    assert.is_true(nothing_is_left())
  end)

  it("works in coroutines and on workers", function()
    local function both()
      local tp = require "threadpool"
      local a, b = tp.here():join(function() return 1 end, function() return 2 end)
      return a + b
    end
    assert.equal(3, threadpool.run(both))
    assert.equal(3, pool:spawn(both):await(LONG))
  end)

  it("refuses what cannot be run there, and starts nothing else", function()
    assert.matches("join: functions expected, got a number at 2", raised(pool.join, pool, print, 5))
    local co = coroutine.create(print)
    local err = raised(function() pool:join(for_ever, function() return co end) end)
    assert.matches("group_spec.lua:%d+: join: function 2: upvalue 'co'", err)
    assert.is_true(nothing_is_left())
  end)
end)
