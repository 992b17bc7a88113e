---Memory stays level, however many tasks there were.

local threadpool = require "threadpool"

local function resident_kb()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmRSS:%s*(%d+)"
    if kb then return tonumber(kb) end
  end
end

local function add(a, b) return a + b end

local function run(pool, n)
  local sum, tasks = 0, {}
  for first = 1, n, 1000 do
    for i = 1, 1000 do tasks[i] = pool:spawn(add, first, i) end
    for i = 1, 1000 do sum = sum + tasks[i]:await() end
  end
  return sum
end

local function sum_of(n)
  local sum = 0
  for first = 1, n, 1000 do sum = sum + 1000 * first + 500500 end
  return sum
end

local function leaves_nothing(n)
  local pool = threadpool.new { workers = 2 }
  run(pool, n / 10)
  collectgarbage()
  local lua, resident = collectgarbage "count", resident_kb()
  assert.equal(sum_of(n), run(pool, n))
  collectgarbage()
  assert.is_true(collectgarbage "count" - lua < 1024, "Lua's memory has grown by a MiB")
  assert.is_true(resident_kb() - resident < 8192, "the process has grown by 8 MiB")
  assert.equal(0, pool:stats().pending)
  pool:close()
end

describe("tasks", function()
  it("leave no memory behind, 200,000 of them", function() leaves_nothing(200000) end)
  it("leave no memory behind, 10 million of them #stress", function() leaves_nothing(1e7) end)

  it("that nobody awaits leave none either", function()
    local pool = threadpool.new { workers = 2 }
    for _ = 1, 20000 do pool:spawn(add, 1, 2) end
    collectgarbage()
    local lua, resident = collectgarbage "count", resident_kb()
    for _ = 1, 200000 do pool:spawn(add, 1, 2) end
    pool:close()
    collectgarbage()
    collectgarbage()
    assert.is_true(collectgarbage "count" - lua < 1024, "Lua's memory has grown by a MiB")
    assert.is_true(resident_kb() - resident < 200 * 1024, "the process has grown by 200 MiB")
  end)
end)
