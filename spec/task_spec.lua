local help = dofile "spec/help/common.lua"
local threadpool = require "threadpool"
local raised, line, aside = help.raised, help.line, help.aside

local FOREVER = { op = "sleep", args = { ms = 3600000 } }

describe("a task", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2, window = 4 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("has an id of its own, below 2^53", function()
    local seen = {}
    for _ = 1, 100 do
      local task = pool:spawn(function() end)
      assert.is_nil(seen[task.id])
      assert.is_true(task.id > 0 and task.id < 2 ^ 53)
      seen[task.id] = true
    end
  end)

  it("awaits its result, as often as one likes", function()
    local task = pool:spawn(function() return 1, nil, 3 end)
    for _ = 1, 3 do
      assert.equal(3, select("#", task:await()))
      assert.same({ 1, nil, 3 }, { task:await() })
    end
  end)

  it("await of a failed one gives the same nil and error each time", function()
    local task = pool:spawn(function() error "x" end)
    local _, first = task:await()
    local value, again = task:await()
    assert.is_nil(value)
    assert.equal(first, again)
  end)

  it("await with seconds gives ERR_TIMEOUT when they are over, and the task goes on", function()
    local task = pool:submit { op = "sleep", args = { ms = 100 } }
    local value, err = task:await(0.001)
    assert.is_nil(value)
    assert.equal("ERR_TIMEOUT", err.name)
    assert.equal(task.id, err.task_id)
    value, err = task:await(0)
    assert.is_nil(value)
    assert.equal("ERR_TIMEOUT", err.name)
    assert.is_true(task:await(60))
  end)

  it("wait says whether it is over, poll too, without waiting", function()
    local task = pool:submit(FOREVER)
    assert.is_false(task:wait(0.001))
    assert.is_false(task:wait(0))
    assert.is_false(task:poll())
    assert.is_true(task:cancel())
    assert.is_true(task:wait())
    assert.is_true(task:wait(0))
    assert.is_true(task:poll())
  end)

  it("poll sees the result without anybody waiting", function()
    local task = pool:spawn(function() return 5 end)
    local deadline = os.time() + 10
    while not task:poll() and os.time() < deadline do end -- luacheck: ignore 542
    assert.equal(5, task:await(0))
  end)

  it("cancel ends it with ERR_CANCELLED, once", function()
    local task = pool:submit(FOREVER)
    assert.is_true(task:cancel())
    local value, err = task:await()
    assert.is_nil(value)
    assert.equal("ERR_CANCELLED", err.name)
    assert.is_false(task:cancel())
  end)

  it("cancel of one that is over is false, and its result stays", function()
    local task = pool:spawn(function() return 1 end)
    task:wait()
    assert.is_false(task:cancel())
    assert.equal(1, task:await())
  end)

  it("cancel ends a Lua function that waits", function()
    local task = pool:spawn(function() require "threadpool".sleep(3600) end)
    assert.is_true(help.eventually(pool, function() return task:status() == "waiting" end))
    assert.is_true(task:cancel())
    local _, err = task:await(10)
    assert.equal("ERR_CANCELLED", err.name)
  end)

  it("has a status, and prints with it", function()
    local task = pool:submit(FOREVER)
    assert.is_true(help.eventually(pool, function() return task:status() == "waiting" end))
    assert.equal(("threadpool.Task %d (waiting)"):format(task.id), tostring(task))
    task:cancel()
    task:wait()
    assert.equal("done", task:status())
    task = pool:spawn(function() while not require "threadpool".cancelled() do end end) -- luacheck: ignore 542
    assert.is_true(help.eventually(pool, function() return task:status() == "running" end))
    task:cancel()
    task:wait()
  end)

  it("detach: whoever awaits it learns at once that nothing comes, and nothing is called", function()
    local task = pool:submit(FOREVER)
    local called = false
    task:on { on_error = function() called = true end, on_result = function() called = true end }
    local outcome
    threadpool.run(function()
      threadpool.go(function() outcome = { task:await() } end)
      threadpool.go(function() task:detach() end)
    end)
    assert.equal("ERR_CANCELLED", outcome[2].name)
    assert.is_false(called)
    assert.equal("done", task:status())
    task:detach()
  end)

  it("detach of one that is over leaves the result", function()
    local task = pool:spawn(function() return 8 end)
    task:wait()
    task:detach()
    assert.equal(8, task:await())
  end)

  it("with a timeout ends with ERR_TIMEOUT", function()
    local task = pool:submit { op = "sleep", args = { ms = 3600000 }, timeout_ms = 10 }
    local _, err = task:await()
    assert.equal("ERR_TIMEOUT", err.name)
    task = pool:spawn({ timeout = 0.01 }, function() require "threadpool".sleep(3600) end)
    _, err = task:await()
    assert.equal("ERR_TIMEOUT", err.name)
  end)
end)

describe("partial results", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2, window = 4 } end)
  teardown(function() pool:close { drain = 0 } end)

  local function parts(...) return { op = "echo", args = { parts = { ... } } } end

  it("come in order, before the result", function()
    local task = pool:submit(parts("a", "b", "c", "d", "e", "f"))
    local seen = {}
    for part in task:partials() do seen[#seen + 1] = part end
    assert.same({ "a", "b", "c", "d", "e", "f" }, seen)
    assert.is_true(task:await())
  end)

  it("come one by one from next; nil is the end", function()
    local task = pool:submit(parts("a", ""))
    assert.equal("a", task:next())
    assert.equal("", task:next())
    assert.is_nil(task:next())
    assert.is_nil(task:next())
    assert.is_true(task:await())
  end)

  it("that were not read are still there when the result has come", function()
    local task = pool:submit(parts("a", "b", "c"))
    assert.is_true(task:await())
    assert.equal("a", task:next())
    assert.equal("b", task:next())
    assert.equal("c", task:next())
    assert.is_nil(task:next())
  end)

  it("false is one", function()
    local task = pool:spawn(function()
      require "threadpool".emit(false)
      require "threadpool".emit(1)
    end)
    assert.is_false(task:next())
    assert.equal(1, task:next())
    assert.is_nil(task:next())
  end)

  it("before a failure are there, and then await says what it was", function()
    local task = pool:spawn(function()
      require "threadpool".emit "one"
      error "then it failed"
    end)
    local seen = {}
    for part in task:partials() do seen[#seen + 1] = part end
    assert.same({ "one" }, seen)
    local _, err = task:await()
    assert.matches("then it failed", err.message, 1, true)
  end)

  it("can be read in a coroutine while another waits for the result", function()
    local task = pool:submit(parts("a", "b", "c", "d", "e", "f", "g", "h", "i"))
    local seen, outcome = {}, nil
    threadpool.run(function()
      threadpool.go(function() outcome = task:await() end)
      for part in task:partials() do seen[#seen + 1] = part end
    end)
    assert.equal(9, #seen)
    assert.is_true(outcome)
  end)
end)

describe("callbacks", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2, window = 4 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("on_result gets the values, from pump and not before", function()
    local got
    local task = pool:spawn({ on_result = function(...) got = { select("#", ...), ... } end },
      function() return 1, nil, 3, nil end)
    assert.is_nil(got)
    task:wait()
    assert.same({ 4, 1, nil, 3, nil }, got)
  end)

  it("on_partial gets each one in order and the task, then on_result is called", function()
    local seen = {}
    local task
    task = pool:submit({ op = "echo", args = { parts = { "a", "b", "c", "d", "e", "f", "g" } } }, {
      on_partial = function(part, of)
        seen[#seen + 1] = part
        assert.equal(task, of)
      end,
      on_result = function() seen[#seen + 1] = "result" end,
      on_error = function() seen[#seen + 1] = "error" end,
    })
    task:wait()
    assert.same({ "a", "b", "c", "d", "e", "f", "g", "result" }, seen)
  end)

  it("on_error gets the error and the task", function()
    local got
    local task = pool:spawn({ on_error = function(...) got = { ... } end }, function() error("no", 0) end)
    task:wait()
    assert.equal("no", got[1].message)
    assert.equal(task, got[2])
  end)

  it("without on_error a failure goes to the handler of errors, with both places", function()
    local seen = aside(function()
      pool:spawn({ on_result = function() end }, function() error "nobody looks" end):wait()
    end)
    assert.equal(1, #seen)
    assert.matches("nobody looks", tostring(seen[1]), 1, true)
  end)

  it("can be added later, also to one that is over, and to one that has others", function()
    local seen = {}
    local task = pool:spawn(function() return 1 end)
    assert.equal(task, task:on { on_result = function(n) seen[#seen + 1] = n end })
    task:on { on_result = function(n) seen[#seen + 1] = n + 1 end }
    task:wait()
    task:on { on_result = function(n) seen[#seen + 1] = n + 2 end }
    assert.same({ 1, 2, 3 }, seen)
    local here = line() + 1
    local err = raised(function() task:on(5) end)
    assert.matches("task_spec.lua:" .. here .. ": on: a table of callbacks expected, got number", err, 1, true)
    err = raised(function() task:on { on_reslut = print } end)
    assert.matches("task_spec.lua:" .. here + 2 .. ": on: unknown callback 'on_reslut'", err, 1, true)
    assert.matches("on: callback 'on_result': a function expected, got number",
      raised(function() task:on { on_result = 5 } end), 1, true)
  end)

  it("one that raises does not stop the others; its error and traceback go to the handler", function()
    local called = 0
    local seen = aside(function()
      local tasks = {}
      for i = 1, 10 do
        tasks[i] = pool:spawn({ on_result = function()
          called = called + 1
          if i == 3 then error "in a callback" end
        end }, function() end)
      end
      for i = 1, 10 do tasks[i]:wait() end
    end)
    assert.equal(10, called)
    assert.equal(1, #seen)
    assert.matches("task_spec.lua:%d+: in a callback", seen[1])
    assert.matches("stack traceback", seen[1], 1, true)
  end)

  it("an on_partial that raises gets the next ones, too", function()
    local parts, ended = 0, false
    local seen = aside(function()
      pool:submit({ op = "echo", args = { parts = { "a", "b", "c" } } }, {
        on_partial = function() parts = parts + 1 error "x" end,
        on_result = function() ended = true end }):wait()
    end)
    assert.equal(3, parts)
    assert.equal(3, #seen)
    assert.is_true(ended)
  end)

  it("a handler of errors that raises does no harm", function()
    local err = io.stderr
    local text = {}
    io.stderr = { write = function(_, ...) text[#text + 1] = table.concat { ... } end } -- luacheck: ignore
    threadpool.on_error(function() error "in the handler" end)
    pool:spawn({ on_result = function() error "in a callback" end }, function() end):wait()
    threadpool.on_error(nil)
    pool:spawn({ on_result = function() error "by default" end }, function() end):wait()
    io.stderr = err -- luacheck: ignore
    assert.matches("in the handler", text[1], 1, true)
    assert.matches("threadpool: .*by default.*stack traceback", text[2])
  end)

  it("may wait, submit and pump", function()
    local order = {}
    local first = pool:spawn(function() return "first" end)
    first:on { on_result = function(name)
      order[#order + 1] = name
      order[#order + 1] = pool:spawn(function() return "second" end):await()
      pool:pump()
      order[#order + 1] = "last"
    end }
    local other = pool:spawn({ on_result = function() order.other = true end }, function() end)
    first:wait()
    other:wait()
    assert.same({ "first", "second", "last", other = true }, order)
  end)

  it("one that pumps gets its later parts and its result once, in order", function()
    local seen = {}
    local task = pool:submit({ op = "echo", args = { parts = { "a", "b", "c", "d" } } }, {
      on_partial = function(part)
        seen[#seen + 1] = part
        pool:pump(0.01)
      end,
      on_result = function() seen[#seen + 1] = "result" end })
    task:wait()
    local all = table.concat(seen)
    assert.equal(5, #seen, all)
    table.sort(seen)
    assert.same({ "a", "b", "c", "d", "result" }, seen)
  end)

  it("are called though nobody has the handle, whatever the collector does", function()
    local n = 0
    for _ = 1, 100 do
      pool:spawn({ on_result = function() n = n + 1 end }, function() end)
      collectgarbage()
    end
    assert.is_true(help.eventually(pool, function() return n == 100 end))
  end)
end)
