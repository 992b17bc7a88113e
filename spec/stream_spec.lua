local help = dofile "spec/help/common.lua"
local threadpool = require "threadpool"
local emit = threadpool.emit
local raised, line = help.raised, help.line

describe("stream", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2, window = 8 } end)
  teardown(function() pool:close { drain = 0 } end)

  it("gives the partial results of a request, in order, then ends", function()
    local seen = {}
    for part in pool:stream { op = "echo", args = { parts = { "a", "b", "c" } } } do seen[#seen + 1] = part end
    assert.same({ "a", "b", "c" }, seen)
  end)

  it("takes JSON text", function()
    local seen = {}
    for part in pool:stream '{"op":"echo","args":{"parts":["x"]}}' do seen[#seen + 1] = part end
    assert.same({ "x" }, seen)
  end)

  it("takes a function with arguments, and options before it", function()
    local function count(from, to) for i = from, to do emit(i) end end
    local sum = 0
    for n in pool:stream(count, 1, 100) do sum = sum + n end
    assert.equal(5050, sum)
    for n in pool:stream({ timeout = 60, priority = "high" }, count, 1, 10) do sum = sum + n end
    assert.equal(5105, sum)
  end)

  it("of what emits nothing ends at once", function()
    for _ in pool:stream(function() end) do error "there is nothing" end
    for _ in pool:stream { op = "sleep", args = { ms = 1 } } do error "there is nothing" end
  end)

  it("raises the error of what fails, after what came before, as an error object", function()
    local seen = {}
    local err = raised(function()
      for part in pool:stream(function() emit(1) emit(2) error "then" end) do seen[#seen + 1] = part end
    end)
    assert.same({ 1, 2 }, seen)
    assert.is_true(threadpool.Error.is(err))
    assert.matches("then", err.message, 1, true)
    err = raised(function() for _ in pool:stream { op = "none" } do error "no" end end)
    assert.equal("ERR_UNKNOWN_OPCODE", err.name)
  end)

  it("raises at the caller's line for what is no request", function()
    local here = line() + 1
    local err = raised(function() pool:stream(5) end)
    assert.matches("stream_spec.lua:" .. here .. ": stream: a function, a table or JSON text expected, got number", err,
      1, true)
  end)

  it("in coroutines, several at once, interleaves them", function()
    local order = {}
    local function slowly(name)
      for i = 1, 5 do
        emit(name .. i)
        threadpool.sleep(0.002)
      end
    end
    threadpool.run(function()
      for _, name in ipairs { "a", "b", "c" } do
        threadpool.go(function()
          for part in pool:stream(slowly, name) do order[#order + 1] = part end
        end)
      end
    end)
    assert.equal(15, #order)
    local together = table.concat(order, " ")
    assert.is_not_equal("a1 a2 a3 a4 a5", together:sub(1, 14))
    local at = { a = 0, b = 0, c = 0 }
    for _, part in ipairs(order) do
      local name, i = part:match "(.)(.)"
      assert.equal(at[name] + 1, tonumber(i))
      at[name] = tonumber(i)
    end
  end)

  it("works on workers", function()
    local sum = pool:spawn(function()
      local n = 0
      for part in threadpool.stream(function() for i = 1, 100 do emit(i) end end) do n = n + part end
      return n
    end):await()
    assert.equal(5050, sum)
  end)
end)

describe("back-pressure", function()
  -- A producer tells how far it has come through a file, which is the one thing that both sides see.
  local ffi = require "ffi"
  local pool, path
  before_each(function()
    pool = threadpool.new { workers = 1, window = 8 }
    path = os.tmpname()
  end)
  after_each(function()
    pool:close { drain = 0 }
    os.remove(path)
  end)

  local function produce(file, n)
    local out = io.open(file, "w")
    out:setvbuf "no"
    for i = 1, n do
      if not emit(i) then
        out:write "unwanted"
        out:close()
        return "unwanted"
      end
      out:write "."
    end
    out:close()
    return "all"
  end

  local function written()
    local f = io.open(path)
    local text = f:read "*a"
    f:close()
    return text
  end

  it("a producer is paused when the window is full, and goes on as parts are read", function()
    local task = pool:spawn(produce, path, 1000)
    -- While it can run, others of its only worker run in turn; so after these it is paused, or was not.
    assert.is_true(help.eventually(pool, function() return #written() == 8 end))
    for _ = 1, 50 do pool:spawn(function() end):await() end
    assert.equal(8, #written())
    for i = 1, 20 do assert.equal(i, task:next()) end
    assert.is_true(help.eventually(pool, function() return #written() >= 20 end))
    for _ = 1, 50 do pool:spawn(function() end):await() end
    assert.is_true(#written() <= 28, #written())
    for i = 21, 1000 do assert.equal(i, task:next()) end
    assert.equal("all", task:await())
    assert.equal(1000, #written())
  end)

  it("a stream that is left ends its producer", function()
    for part in pool:stream(produce, path, 1e9) do
      if part == 20 then break end
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(help.eventually(pool, function() return pool:stats().pending == 0 end))
    assert.is_true(#written() < 1000)
  end)

  it("a task that is dropped while it emits ends its producer", function()
    local function drop()
      local task = pool:spawn(produce, path, 1e9)
      for i = 1, 20 do assert.equal(i, task:next()) end
    end
    drop()
    collectgarbage()
    collectgarbage()
    assert.is_true(help.eventually(pool, function()
      collectgarbage()
      return pool:stats().pending == 0
    end))
    assert.is_true(#written() < 1000 or ffi.abi "be")
  end)

  it("a task that is dropped before its first part was read ends its producer", function()
    pool:spawn(produce, path, 1e9)
    assert.is_true(help.eventually(pool, function()
      collectgarbage()
      return pool:stats().pending == 0
    end))
  end)

  it("a callback on_partial makes room by itself", function()
    local n = 0
    local task = pool:spawn({ on_partial = function() n = n + 1 end }, produce, path, 1000)
    assert.equal("all", task:await())
    assert.equal(1000, n)
  end)

  it("on a worker a producer and its reader share one worker", function()
    local sum = pool:spawn(function()
      local n = 0
      for part in threadpool.stream(function() for i = 1, 1000 do emit(i) end end) do n = n + part end
      return n
    end):await()
    assert.equal(500500, sum)
  end)
end)
