local help = dofile "spec/help/common.lua"
local threadpool = require "threadpool"
local raised, line, aside = help.raised, help.line, help.aside
local run, go, sleep = threadpool.run, threadpool.go, threadpool.sleep

describe("run", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("calls a function in a coroutine, with arguments, and returns what it returns", function()
    local function count(...) return select("#", ...), ... end
    assert.equal(0, (count(run(function() end))))
    assert.same({ 4, 1, nil, 3, nil }, { count(run(function(...) return ... end, 1, nil, 3, nil)) })
    assert.is_not_nil(run(coroutine.running))
  end)

  it("raises what the function raises: text with a traceback, anything else as it is", function()
    local err = raised(function() run(function() error "inside" end) end)
    assert.matches("run_spec.lua:%d+: inside", err)
    assert.matches("stack traceback", err, 1, true)
    local object = { 5 }
    assert.equal(object, raised(function() run(function() error(object) end) end))
    local failed = raised(function() run(function() error(select(2, pool:spawn(error, "far"):await())) end) end)
    assert.equal("ERR_LUA", failed.name)
  end)

  it("waits for all that was started with go, however deep", function()
    local ended = 0
    run(function()
      for _ = 1, 3 do
        go(function()
          sleep(0.01)
          go(function()
            sleep(0.01)
            ended = ended + 1
          end)
        end)
      end
    end)
    assert.equal(3, ended)
  end)

  it("raises at the caller's line for anything else than a function", function()
    local here = line() + 1
    local err = raised(function() run(5) end)
    assert.matches("run_spec.lua:" .. here .. ": run: function expected, got number", err, 1, true)
    err = raised(function() go() end)
    assert.matches("run_spec.lua:" .. here + 2 .. ": go: function expected, got nil", err, 1, true)
  end)

  it("cannot be called in itself: go is for that", function()
    local here = line() + 1
    local err = run(function() return raised(function() run(function() end) end) end)
    assert.matches("run_spec.lua:" .. here .. ": run: it runs already: use go", err, 1, true)
  end)

  it("can be called again, also after an error", function()
    for i = 1, 3 do
      assert.equal(i, run(function() return i end))
      pcall(run, error)
    end
  end)

  it("works in a callback", function()
    local got
    local function inner() return pool:spawn(function() return 5 end):await() end
    pool:spawn({ on_result = function() got = run(inner) end }, function() end):wait()
    assert.equal(5, got)
  end)
end)

describe("go", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("starts coroutines that take turns where they wait", function()
    local order = {}
    local function say(text) order[#order + 1] = text end
    run(function()
      go(function(name)
        say(name .. " begins")
        pool:spawn(function() end):await()
        say(name .. " ends")
      end, "one")
      go(function()
        say "two begins"
      end)
      say "main"
    end)
    assert.same({ "main", "one begins", "two begins", "one ends" }, order)
  end)

  it("returns the coroutine, and passes arguments with nils", function()
    local co, got
    run(function()
      co = go(function(...) got = { select("#", ...), ... } end, nil, 2, nil)
    end)
    assert.equal("dead", coroutine.status(co))
    assert.same({ 3, nil, 2, nil }, got)
  end)

  it("a plain yield gives the others a turn", function()
    local order = {}
    run(function()
      for _, name in ipairs { "a", "b" } do
        go(function()
          for i = 1, 3 do
            order[#order + 1] = name .. i
            coroutine.yield()
          end
        end)
      end
    end)
    assert.same({ "a1", "b1", "a2", "b2", "a3", "b3" }, order)
  end)

  it("a plain yield does not keep results from coming", function()
    local task = pool:spawn(function() return 1 end)
    local turns = 0
    run(function()
      go(function() while not task:poll() do turns = turns + 1 coroutine.yield() end end)
      go(function() assert.equal(1, task:await()) end)
    end)
    assert.equal(1, task:await())
  end)

  it("one that raises does not stop the others: the error goes to the handler, with a traceback", function()
    local went_on = false
    local seen = aside(function()
      run(function()
        go(function() error "in one" end)
        go(function()
          sleep(0.01)
          went_on = true
        end)
      end)
    end)
    assert.is_true(went_on)
    assert.equal(1, #seen)
    assert.matches("run_spec.lua:%d+: in one", seen[1])
    assert.matches("stack traceback", seen[1], 1, true)
  end)

  it("one that raises an error object is told with its text", function()
    local seen = aside(function()
      run(function() go(function() assert(pool:submit { op = "nothing" }:await()) end) end)
    end)
    assert.matches("ERR_UNKNOWN_OPCODE", seen[1], 1, true)
  end)

  it("outside of run begins with whatever waits or pumps", function()
    local began = false
    go(function() began = true end)
    assert.is_false(began)
    threadpool.pump()
    assert.is_true(began)
    local value
    go(function() value = pool:spawn(function() return 3 end):await() end)
    assert.is_true(help.eventually(pool, function() return value == 3 end))
  end)

  it("the coroutine may pump, and await in a coroutine of its own", function()
    local inner
    run(function()
      for _ = 1, 5 do go(function() threadpool.pump() end) end
      local co = coroutine.wrap(function() inner = pool:spawn(function() return 4 end):await() end)
      co()
    end)
    assert.equal(4, inner)
  end)

  it("yields across pcall, xpcall, metamethods and iterators", function()
    local value = run(function()
      local got = {}
      local ok, a = pcall(function() return pool:spawn(function() return 1 end):await() end)
      got[1] = ok and a
      ok, a = xpcall(function() return pool:spawn(function() return 2 end):await() end, debug.traceback)
      got[2] = ok and a
      local object = setmetatable({}, { __index = function() return pool:spawn(function() return 3 end):await() end })
      got[3] = object.x
      for v in function(_, last) if not last then return pool:spawn(function() return 4 end):await() end end do
        got[4] = v
      end
      ok, a = pcall(function()
        pool:spawn(function() end):await()
        error("after", 0)
      end)
      got[5] = not ok and a
      return got
    end)
    assert.same({ 1, 2, 3, 4, "after" }, value)
  end)

  it("many wait for one task, and all are told", function()
    local n = 0
    run(function()
      local task = pool:submit { op = "sleep", args = { ms = 10 } }
      for _ = 1, 100 do go(function() if task:await() then n = n + 1 end end) end
    end)
    assert.equal(100, n)
  end)

  it("1,000 coroutines sleep at once", function()
    local n = 0
    run(function()
      for i = 1, 1000 do
        go(function()
          sleep(0.01 + i / 100000)
          n = n + 1
        end)
      end
    end)
    assert.equal(1000, n)
  end)

  it("await with seconds lets the others go on, and gives up", function()
    local order = {}
    run(function()
      local task = pool:submit { op = "sleep", args = { ms = 3600000 } }
      go(function()
        local _, err = task:await(0.05)
        order[#order + 1] = err.name
        task:cancel()
      end)
      go(function()
        for _ = 1, 3 do pool:spawn(function() end):await() end
        order[#order + 1] = "others"
      end)
    end)
    assert.same({ "others", "ERR_TIMEOUT" }, order)
  end)
end)

describe("sleep", function()
  it("waits so long, also outside of coroutines", function()
    local pool = threadpool.new { workers = 1 }
    local core = require "threadpool.core"
    local before = core.now()
    sleep(0.02)
    assert.is_true(core.now() - before >= 0.02)
    run(function()
      before = core.now()
      sleep(0.02)
      assert.is_true(core.now() - before >= 0.02)
    end)
    sleep(0)
    sleep(-1)
    pool:close()
  end)

  it("raises at the caller's line for what is no time", function()
    local here = line() + 1
    local err = raised(function() sleep "1" end)
    assert.matches("run_spec.lua:" .. here .. ": sleep: seconds expected", err, 1, true)
    assert.matches("seconds expected", raised(function() sleep(0 / 0) end), 1, true)
  end)
end)

describe("coroutines that nobody drives", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("are resumed by who pumps", function()
    local value
    local co = coroutine.create(function() value = pool:spawn(function() return 5 end):await() end)
    assert.is_true(coroutine.resume(co))
    assert.equal("suspended", coroutine.status(co))
    assert.is_nil(value)
    while not value do pool:pump(1) end
    assert.equal(5, value)
    assert.equal("dead", coroutine.status(co))
  end)

  it("are resumed while the program waits for something else", function()
    local value
    coroutine.wrap(function() value = pool:spawn(function() return 5 end):await() end)()
    sleep(0.1)
    assert.is_true(help.eventually(pool, function() return value == 5 end))
  end)

  it("their errors go to the handler", function()
    local seen = aside(function()
      coroutine.wrap(function()
        pool:spawn(function() end):await()
        error "in a plain one"
      end)()
      for _ = 1, 5 do pool:pump(0.05) end
    end)
    assert.equal(1, #seen)
    assert.matches("in a plain one", seen[1], 1, true)
  end)

  it("one that is resumed too early by its owner waits on", function()
    local value
    local co = coroutine.create(function() value = pool:submit({ op = "sleep", args = { ms = 50 } }):await() end)
    for _ = 1, 3 do assert.is_true(coroutine.resume(co)) end
    assert.is_nil(value)
    assert.is_true(help.eventually(pool, function() return value end))
  end)

  it("a yield of its own is not mixed up with ours", function()
    local got = {}
    local co = coroutine.create(function()
      local a, b = pool:spawn(function() return 1 end), pool:spawn(function() return 2 end)
      got[1], got[2] = a:await(), b:await()
      got[3] = coroutine.yield "mine"
    end)
    coroutine.resume(co)
    assert.is_true(help.eventually(pool, function() return got[2] end))
    for _ = 1, 3 do pool:pump(0.01) end
    assert.equal("suspended", coroutine.status(co))
    coroutine.resume(co, "answer")
    assert.same({ 1, 2, "answer" }, got)
  end)

  it("sleep, streams and deadlines work in them", function()
    local got = {}
    coroutine.wrap(function()
      sleep(0.001)
      for part in pool:stream { op = "echo", args = { parts = { "a", "b" } } } do got[#got + 1] = part end
      local _, err = pool:submit({ op = "sleep", args = { ms = 3600000 } }):await(0.01)
      got[3] = err.name
    end)()
    assert.is_true(help.eventually(pool, function() return got[3] end))
    assert.same({ "a", "b", "ERR_TIMEOUT" }, got)
  end)
end)
