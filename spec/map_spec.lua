local ffi = require "ffi"
local threadpool = require "threadpool"

describe("map, each and reduce", function()
  local pool

  before_each(function() pool = threadpool.new { workers = 2 } end)
  after_each(function() pool:close { drain = 0 } end)

  -- Raises an error of this file that says so.
  local function misuse(message, f)
    local ok, err = pcall(f)
    assert.is_false(ok, "no error: " .. message)
    assert.truthy(tostring(err):find(message, 1, true), tostring(err))
    local info = debug.getinfo(f, "S")
    local file, line = tostring(err):match "^(.-):(%d+): "
    assert.equal(info.short_src, file)
    assert.is_true(tonumber(line) >= info.linedefined and tonumber(line) <= info.lastlinedefined, err)
  end

  local function wait_until(done)
    local deadline = os.time() + 20
    while not done() do
      assert(os.time() < deadline, "it never came")
      pool:pump(0.01)
    end
  end

  -- A worker's state is told of what was cancelled when the next call has it.
  local function wait_until_idle()
    wait_until(function()
      for _ = 1, 4 do pool:spawn(function() collectgarbage() end):await() end
      return pool:stats().pending == 0
    end)
  end

  describe("map", function()
    it("gives the results in the order of the items", function()
      local list = {}
      for i = 1, 3000 do list[i] = "item " .. i end
      local values, errors = pool:map(list, function(item, index) return item .. "/" .. index end)
      assert.is_nil(errors)
      assert.equal(3000, #values)
      for i = 1, 3000 do assert(values[i] == ("item %d/%d"):format(i, i)) end
    end)

    it("keeps numbers as they are, in long lists too, with other values among them", function()
      local list = { 0 / 0, math.huge, -math.huge, -0, 2 ^ 53, 0.1, 1e-320 }
      for i = #list + 1, 100 do list[i] = i + 0.25 end
      local function same(values, except)
        for i = 1, 100 do
          local a, b = list[i], values[i]
          if i ~= except then assert.is_true(a == b and 1 / a == 1 / b or a ~= a and b ~= b, "item " .. i) end
        end
      end
      local function itself(x) return x end
      for chunk = 1, 100, 33 do same((pool:map(list, itself, { chunk = chunk })), nil) end
      for _, odd in ipairs { "text", true, { 1 } } do
        for _, at in ipairs { 1, 50, 100 } do
          local before = list[at]
          list[at] = odd
          local values = pool:map(list, itself, { chunk = 100 })
          same(values, at)
          assert.same(odd, values[at])
          list[at] = before
        end
      end
      local values = pool:map(list, function(x, i) return i ~= 60 and x or nil end, { chunk = 100 })
      assert.is_nil(values[60])
      same(values, 60)
    end)

    it("takes a number, a range, an array of the FFI, an iterator, a list with holes, an empty one", function()
      local function double(x, i) return x and { x * 2, i } or "nothing" end
      assert.same({ { 2, 1 }, { 4, 2 }, { 6, 3 } }, (pool:map(3, double)))
      assert.same({ { -4, 1 }, { -2, 2 }, { 0, 3 } }, (pool:map({ first = -2, last = 0 }, double)))
      assert.same({}, (pool:map({ first = 2, last = 1 }, double)))
      assert.same({ { 3, 1 }, { 5, 2 } }, (pool:map(ffi.new("float[?]", 2, 1.5, 2.5), double, { n = 2 })))
      local at = 0
      local function iterator()
        at = at + 1
        return at <= 50 and at or nil
      end
      local values = pool:map(iterator, double)
      assert.equal(50, #values)
      assert.same({ 100, 50 }, values[50])
      at = 0
      assert.equal(20, #pool:map(iterator, double, { n = 20 }))
      assert.equal(20, at)
      assert.same({ { 2, 1 }, "nothing", { 6, 3 }, "nothing" }, (pool:map({ 1, nil, 3 }, double, { n = 4 })))
      assert.same({}, (pool:map({}, double)))
      assert.same({}, (pool:map(0, double)))
    end)

    it("takes the items of a 64-bit array as such", function()
      local values = pool:map(ffi.new("int64_t[?]", 20, 2LL ^ 60), function(x) return x + 1 end, { n = 20 })
      assert.equal(2LL ^ 60 + 1, values[1])
    end)

    it("calls fn once for each item, whatever the chunks", function()
      local n = 5000
      local seen = ffi.new("uint8_t[?]", n)
      local all = { {}, { chunk = 1 }, { chunk = 7 }, { chunk = 10000 }, { limit = 1 }, { limit = 100 } }
      for _, options in ipairs(all) do
        ffi.fill(seen, n)
        local shared = threadpool.share(seen)
        pool:each(n, function(i) shared[i - 1] = shared[i - 1] + 1 end, options)
        for i = 0, n - 1 do assert(seen[i] == 1) end
      end
    end)

    it("gives an error to each item that fails, and goes on with the others", function()
      local line = debug.getinfo(1, "l").currentline + 2
      local values, errors = pool:map(100, function(x)
        if x % 10 == 0 then error("no " .. x) end
        return x
      end)
      for i = 1, 100 do
        if i % 10 == 0 then
          assert.is_nil(values[i])
          assert.is_true(threadpool.Error.is(errors[i]))
          assert.equal("ERR_LUA", errors[i].name)
          assert.equal(("spec/map_spec.lua:%d: no %d"):format(line, i), errors[i].message)
        else
          assert.equal(i, values[i])
          assert.is_nil(errors[i])
        end
      end
      local traceback = errors[10].traceback
      assert.truthy(traceback:find(("map_spec.lua:%d: in function"):format(line), 1, true), traceback)
      assert.truthy(traceback:find(("submitted at spec/map_spec.lua:%d"):format(line - 1), 1, true), traceback)
    end)

    it("keeps what was raised, also a table, an error object, nil, something that cannot travel", function()
      local values, errors = pool:map(5, function(i)
        local core = require "threadpool.core"
        if i == 1 then error { reason = "a" } end
        if i == 2 then error(require("threadpool.error").new(core.ERR_IO, "the disk")) end
        if i == 3 then error() end
        if i == 4 then error(coroutine.create(print)) end
        error("plain", 0)
      end, { chunk = 5 })
      assert.same({}, values)
      assert.same({ reason = "a" }, errors[1].value)
      assert.equal("ERR_IO: the disk", tostring(errors[2]))
      assert.equal("ERR_LUA", errors[3].name)
      assert.equal("ERR_LUA", errors[4].name)
      assert.equal("plain", errors[5].message)
    end)

    it("gives a result that cannot travel as the error of its item alone", function()
      local values, errors = pool:map(20, function(i)
        if i == 7 then return coroutine.create(print) end
        return { i }
      end, { chunk = 20 })
      assert.same({ 6 }, values[6])
      assert.same({ 8 }, values[8])
      assert.is_nil(values[7])
      assert.matches("^its result: a coroutine cannot be sent to another thread", errors[7].message)
      assert.is_nil(errors[6])
    end)

    it("does not do more than `limit` at once, also when they await something", function()
      pool:close()
      pool = threadpool.new { workers = 1 } -- so that the counter needs no lock
      local count = threadpool.share(ffi.new "int[2]")
      pool:map(40, function()
        local tp = require "threadpool"
        count[0] = count[0] + 1
        count[1] = math.max(count[0], count[1])
        tp.sleep(0.005)
        count[0] = count[0] - 1
      end, { limit = 8 })
      assert.equal(8, count.data[1])
      assert.equal(0, count.data[0])
    end)

    it("tries again what fails, so many times", function()
      local tries = threadpool.share(ffi.new "int[11]")
      local function fail_twice(i)
        tries[i] = tries[i] + 1
        if tries[i] <= 2 and i % 2 == 0 then error "not yet" end
        return i
      end
      local values, errors = pool:map(10, fail_twice, { retry = 2, backoff = 0.001 })
      assert.is_nil(errors)
      assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, values)
      for i = 1, 10 do assert.equal(i % 2 == 0 and 3 or 1, tries.data[i]) end
      ffi.fill(tries.data, ffi.sizeof(tries.data))
      values, errors = pool:map(10, fail_twice, { retry = 1, backoff = 0, chunk = 3 })
      assert.equal(9, values[9])
      assert.truthy(errors[10].message:find "not yet")
      assert.equal(2, tries.data[10])
      assert.is_nil(errors[9])
    end)

    it("waits twice as long before each further try, give or take a quarter", function()
      local core = require "threadpool.core"
      local began = core.now()
      pool:map(1, function() error "never" end, { retry = 3, backoff = 0.02 })
      assert.is_true(core.now() - began >= 0.02 * (1 + 2 + 4) * 0.75)
    end)

    it("says how far it is, on this thread", function()
      local last, calls = 0, 0
      pool:map(1000, function() end, { on_progress = function(done, total)
        assert(done > last and done <= total and total == 1000)
        last, calls = done, calls + 1
      end })
      assert.equal(1000, last)
      assert.is_true(calls > 2)
      local totals = {}
      pool:map(3, function() error "x" end, { chunk = 1, retry = 1, backoff = 0,
        on_progress = function(done) totals[#totals + 1] = done end })
      assert.same({ 1, 2, 3 }, totals)
    end)

    it("raises what on_progress raises, and cancels the rest", function()
      local ran = threadpool.share(ffi.new "int[1]")
      local mark = {}
      local ok, err = pcall(pool.map, pool, 1000, function()
        ran[0] = ran[0] + 1
        require("threadpool").sleep(0.01)
      end, { on_progress = function() error(mark) end })
      assert.is_false(ok)
      assert.equal(mark, err)
      wait_until_idle()
      assert.is_true(ran.data[0] < 50)
      assert.same({ 2 }, (pool:map({ 1 }, function(x) return 2 * x end)))
    end)

    it("raises what an iterator raises", function()
      local ok, err = pcall(pool.map, pool, function() error("no more", 0) end, function() end)
      assert.is_false(ok)
      assert.equal("no more", err)
    end)

    it("takes the upvalues as they are when it is called", function()
      local k = 2
      local function times(x) return x * k end
      assert.equal(20, pool:map(10, times)[10])
      k = 3
      assert.equal(30, pool:map(10, times)[10])
    end)

    it("keeps the functions of two pools apart, in both directions", function()
      local other = threadpool.new { workers = 1 }
      local function double(x) return x * 2 end
      local function negate(x) return -x end
      for _ = 1, 3 do
        assert.same({ 2 }, (pool:map(1, double)))
        assert.same({ -1 }, (other:map(1, negate)))
        assert.same({ 2 }, (other:map(1, double)))
        assert.same({ -1 }, (pool:map(1, negate)))
        local a = pool:map(1, function() return function() return "a" end end)
        local b = other:map(1, function() return function() return "b" end end)
        assert.equal("ab", a[1]() .. b[1]())
      end
      other:close()
    end)

    it("yields in coroutines, so that others go on", function()
      local order = {}
      threadpool.run(function()
        threadpool.go(function()
          order[#order + 1] = "second begins"
          assert.same({ 1, 4, 9 }, (pool:map(3, function(x) return x * x end)))
          order[#order + 1] = "second ends"
        end)
        assert.equal(20, #pool:map(20, function(x)
          require("threadpool").sleep(0.02)
          return x
        end))
        order[#order + 1] = "first ends"
      end)
      assert.same({ "second begins", "second ends", "first ends" }, order)
    end)

    it("survives many at once in coroutines, with the collector at work", function()
      local sums = {}
      threadpool.run(function()
        for k = 1, 30 do
          threadpool.go(function()
            local values = pool:map(50, function(x)
              require("threadpool").sleep(0.001)
              return x * k
            end, { limit = 3, chunk = 5 })
            collectgarbage()
            local sum = 0
            for i = 1, 50 do sum = sum + values[i] end
            sums[k] = sum
          end)
        end
      end)
      for k = 1, 30 do assert.equal(k * 1275, sums[k]) end
    end)

    it("works in a coroutine of somebody else", function()
      local values
      local co = coroutine.create(function()
        -- So many that the numbers of tasks are used again while results of others are being dealt with.
        values = pool:map(2000, function(x) return -x end, { chunk = 1, limit = 32 })
      end)
      coroutine.resume(co)
      wait_until(function() return values end)
      assert.equal(-2000, values[2000])
      assert.equal("dead", coroutine.status(co))
    end)

    it("works on a worker, with another map inside", function()
      local values = assert(pool:spawn(function()
        return pool:map(4, function(i)
          local inner = pool:map(4, function(j) return i * j end)
          return inner[1] + inner[2] + inner[3] + inner[4]
        end)
      end):await())
      assert.same({ 10, 20, 30, 40 }, values)
    end)

    it("tries again on a worker, too", function()
      local values, errors = pool:spawn(function()
        return pool:map(2, function() error "never" end, { retry = 1, backoff = 0.001 })
      end):await()
      assert.same({}, values)
      assert.truthy(errors[2].message:find "never")
    end)

    it("cancels the rest when the task that called it is cancelled", function()
      local ran = threadpool.share(ffi.new "int[1]")
      local task = pool:spawn(function()
        local mine = require("threadpool").share(ran)
        pool:map(10000, function()
          mine[0] = mine[0] + 1
          require("threadpool").sleep(0.005)
        end, { limit = 4, chunk = 1 })
      end)
      wait_until(function() return ran.data[0] > 10 end)
      task:cancel()
      local _, err = task:await()
      assert.equal("ERR_CANCELLED", err.name)
      wait_until_idle()
      assert.is_true(ran.data[0] < 1000)
    end)

    it("cancels the rest when the group of its caller fails", function()
      local ran = threadpool.share(ffi.new "int[1]")
      local value, err = threadpool.group(function(group)
        group:go(function()
          pool:map(10000, function()
            ran[0] = ran[0] + 1
            require("threadpool").sleep(0.005)
          end, { limit = 4, chunk = 1 })
        end)
        group:spawn(function()
          require("threadpool").sleep(0.1)
          error("the group fails", 0)
        end)
      end, { pool = pool })
      assert.is_nil(value)
      assert.truthy(tostring(err):find("the group fails", 1, true), tostring(err))
      wait_until_idle()
      assert.is_true(ran.data[0] < 1000)
    end)

    it("gives ERR_TIMEOUT to an item that takes too long", function()
      local values, errors = pool:map(3, function(i)
        if i == 2 then require("threadpool").sleep(30) end
        return i
      end, { timeout = 0.1 })
      assert.equal(1, values[1])
      assert.equal(3, values[3])
      assert.equal("ERR_TIMEOUT", errors[2].name)
    end)

    it("waits when the pool takes no more", function()
      pool:close()
      pool = threadpool.new { workers = 1, max_pending = 4 }
      local values = pool:map(200, function(x) return x end, { chunk = 1, limit = 50 })
      assert.equal(200, #values)
      local inside = 0
      threadpool.run(function()
        for _ = 1, 5 do
          threadpool.go(function()
            local n = #pool:map(50, tostring, { chunk = 1, limit = 10 })
            inside = inside + n
          end)
        end
      end)
      assert.equal(250, inside)
    end)

    it("returns an error when the pool is closed meanwhile", function()
      local values, err
      threadpool.run(function()
        threadpool.go(function()
          values, err = pool:map(1000, function() require("threadpool").sleep(0.02) end)
        end)
        threadpool.sleep(0.05)
        pool:close { drain = 0 }
      end)
      assert.is_nil(values)
      assert.equal("ERR_SHUTDOWN", err.name)
    end)

    it("refuses before anything runs what cannot travel", function()
      local file = io.tmpfile()
      misuse("map: upvalue 'file' of the function that begins at spec/map_spec.lua:", function()
        pool:map({ 1 }, function() return file end)
      end)
      misuse("a coroutine cannot be sent to another thread", function()
        pool:map({ 1, coroutine.create(print) }, function() end)
      end)
      wait_until_idle()
    end)

    it("says what is wrong with its arguments", function()
      local function f() end
      misuse("map: a function expected, got nil", function() pool:map({}) end)
      misuse("map: a list expected: a table, a number, an iterator function or an array of the FFI; got nil",
        function() pool:map(nil, f) end)
      misuse("map: a list expected: a table, a number, an iterator function or an array of the FFI; got a string",
        function() pool:map("abc", f) end)
      misuse("map: option n is nil", function() pool:map(ffi.new "int[3]", f) end)
      misuse("map: the number of items: a whole number expected, 0 or more, got -1", function() pool:map(-1, f) end)
      misuse("map: last: a whole number expected", function() pool:map({ first = 1, last = 1.5 }, f) end)
      misuse("map: limit: a whole number expected, 1 or more, got 0", function() pool:map({}, f, { limit = 0 }) end)
      misuse("map: chunk: a whole number expected", function() pool:map({}, f, { chunk = "x" }) end)
      misuse("map: retry: a whole number expected, 0 or more, got -1", function() pool:map({}, f, { retry = -1 }) end)
      misuse("map: backoff: seconds expected", function() pool:map({}, f, { backoff = -1 }) end)
      misuse("map: on_progress: a function expected", function() pool:map({}, f, { on_progress = 1 }) end)
      misuse("map: n: a whole number expected", function() pool:map({}, f, { n = 0.5 }) end)
      misuse("map: unknown option 'limits': expected limit, chunk", function() pool:map({}, f, { limits = 1 }) end)
      misuse("map: a table of options expected, got number", function() pool:map({}, f, 3) end)
      misuse("each: a function expected", function() pool:each({}) end)
      misuse("reduce: a function expected", function() pool:reduce({}) end)
      misuse("reduce: unknown option 'retry'", function() pool:reduce({}, f, 0, { retry = 1 }) end)
      misuse("option 'priority': expected", function() pool:map({ 1 }, f, { priority = "urgent" }) end)
      misuse("option 'timeout': expected seconds", function() pool:map({ 1 }, f, { timeout = -1 }) end)
    end)
  end)

  describe("each", function()
    it("calls the function for each item, and says whether none failed", function()
      local sum = threadpool.share(ffi.new "double[101]")
      local ok, errors = pool:each(100, function(x) sum[x] = x end)
      assert.is_true(ok)
      assert.is_nil(errors)
      for i = 1, 100 do assert.equal(i, sum.data[i]) end
      ok, errors = pool:each({ "a", "b" }, function(x) if x == "b" then error("not b", 0) end end)
      assert.is_false(ok)
      assert.is_nil(errors[1])
      assert.equal("not b", errors[2].message)
    end)
  end)

  describe("reduce", function()
    local function join(a, b) return a .. b end

    it("keeps the order, whatever the chunks", function()
      local list = {}
      for i = 1, 500 do list[i] = ("<%d>"):format(i) end
      local expected = table.concat(list)
      for _, options in ipairs { {}, { chunk = 1 }, { chunk = 3, limit = 20 }, { chunk = 1000 } } do
        assert.equal("begin" .. expected, pool:reduce(list, join, "begin", options))
        assert.equal(expected, pool:reduce(list, join, nil, options))
      end
    end)

    it("adds up ranges, arrays, lists", function()
      local function add(a, b) return a + b end
      assert.equal(500000500000, pool:reduce(1000000, add, 0))
      assert.equal(6, pool:reduce(ffi.new("double[?]", 3, { 1, 2, 3 }), add, 0, { n = 3 }))
      assert.equal(1 + 2 + 3 + 10, pool:reduce({ 1, 2, 3 }, add, 10))
    end)

    it("gives init for an empty list, the item for a list of one", function()
      assert.equal(7, pool:reduce({}, join, 7))
      assert.is_nil((pool:reduce({}, join)))
      assert.equal("a", pool:reduce({ "a" }, join))
    end)

    it("ends with the first error", function()
      local value, err = pool:reduce(1000, function(a, b)
        if b == 500 then error("at 500", 0) end
        return a + b
      end, 0, { chunk = 10 })
      assert.is_nil(value)
      assert.equal("at 500", err.message)
      local calls = 0
      value, err = pool:reduce({ 1, 2 }, function(a, b)
        calls = calls + 1
        if a == "init" then error("combining", 0) end
        return a + b
      end, "init")
      assert.is_nil(value)
      assert.equal("combining", err.message)
      wait_until_idle()
    end)
  end)

  it("work as functions of the module, with the newest pool", function()
    assert.same({ 2, 4 }, (threadpool.map({ 1, 2 }, function(x) return x * 2 end)))
    assert.is_true(threadpool.each(2, function() end))
    assert.equal(3, threadpool.reduce(2, function(a, b) return a + b end, 0))
  end)

  it("leave nothing behind #stress", function()
    local function rss()
      return tonumber(io.open("/proc/self/statm"):read("*a"):match "^%d+ (%d+)") * 4096
    end
    local k = 1
    local function use()
      for _ = 1, 20 do
        pool:map(20000, function(x) return x * k end)
        pool:map(200, function(x) return { tostring(x) } end, { chunk = 1 })
      end
      collectgarbage()
      collectgarbage()
    end
    use()
    local before = rss()
    for _ = 1, 10 do use() end
    assert.is_true(rss() - before < 20e6, ("%d bytes more"):format(rss() - before))
  end)
end)
