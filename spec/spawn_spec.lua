local help = dofile "spec/help/common.lua"
local ffi = require "ffi"
local threadpool = require "threadpool"
local raised, line = help.raised, help.line

local floor = math.floor

describe("spawn", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close { drain = 0 } end)

  -- What comes back of a value that went there.
  local function there_and_back(...)
    return assert(pool:spawn(function(...) return ... end, ...)):await()
  end

  describe("sends and brings back", function()
    it("nil, booleans, numbers and strings exactly", function()
      assert.same({ true, false }, { there_and_back(true, false) })
      for _, n in ipairs { 0, 1, -1, 0.1, 1e308, -1e-308, 2 ^ 53, 1 / 0, -1 / 0 } do
        assert.equal(n, there_and_back(n))
      end
      assert.equal(-1 / 0, 1 / there_and_back(-0.0))
      local nan = there_and_back(0 / 0)
      assert.is_true(nan ~= nan)
      assert.equal("", there_and_back "")
      assert.equal("\0a\0\255", there_and_back "\0a\0\255")
    end)

    it("long strings with zeros", function()
      local text = ("\0\1\2text\255"):rep(500000)
      local back = there_and_back(text)
      assert.equal(#text, #back)
      assert.is_true(text == back)
    end)

    it("nils between values and at the end, and how many there are", function()
      local function count(...) return select("#", ...), ... end
      assert.same({ 0 }, { count(there_and_back()) })
      assert.equal(1, (count(there_and_back(nil))))
      assert.equal(5, (count(there_and_back(nil, nil, 3, nil, nil))))
      assert.same({ 5, nil, nil, 3, nil, nil }, { count(there_and_back(nil, nil, 3, nil, nil)) })
    end)

    it("many values", function()
      local many = {}
      for i = 1, 5000 do many[i] = i end
      assert.same(many, { there_and_back(unpack(many)) })
    end)

    it("tables: lists, holes, any keys, nested", function()
      local t = { 1, 2, nil, 4, x = { y = { z = "deep" } }, [1.5] = "n", [true] = "b", [-1] = "m", [2 ^ 40] = "l" }
      assert.same(t, there_and_back(t))
      assert.same({}, there_and_back {})
      local key = {}
      local back = there_and_back { [key] = key }
      local k, v = next(back)
      assert.equal(k, v)
    end)

    it("tables 10,000 deep", function()
      local t = {}
      local at = t
      for _ = 1, 10000 do
        at.next = { "x" }
        at = at.next
      end
      local depth = 0
      local back = there_and_back(t)
      while back.next do
        back = back.next
        assert(back[1] == "x")
        depth = depth + 1
      end
      assert.equal(10000, depth)
    end)

    it("cycles and shared references as they were", function()
      local shared = { "shared" }
      local t = { a = shared, b = shared }
      t.self = t
      local back, again, same = there_and_back(t, shared, t)
      assert.equal(back, back.self)
      assert.equal(back.a, back.b)
      assert.equal(back.a, again)
      assert.equal(back, same)
      assert.same({ "shared" }, again)
    end)

    it("copies: what the function changes is its own", function()
      local t = { 1 }
      local back = pool:spawn(function(x) x[1] = 2 return x end, t):await()
      assert.same({ 1 }, t)
      assert.same({ 2 }, back)
    end)

    it("functions, with their upvalues", function()
      local n = 10
      local add = there_and_back(function(x) return x + n end)
      assert.equal(15, add(5))
      local f = pool:spawn(function(a) return function(b) return a .. b end end, "x"):await()
      assert.equal("xy", f "y")
    end)

    it("functions of Lua itself as what they are here", function()
      assert.equal(print, (there_and_back(print)))
      assert.equal(string.format, (there_and_back(string.format)))
    end)

    it("light userdata", function()
      local p = require "threadpool.json".null
      assert.equal(p, (there_and_back(p)))
    end)
  end)

  describe("upvalues", function()
    it("are copied, and read anew at each spawn", function()
      local n, t = 1, { 1 }
      local function f() return n, t[1] end
      assert.same({ 1, 1 }, { pool:spawn(f):await() })
      n, t[1] = 2, 20
      assert.same({ 2, 20 }, { pool:spawn(f):await() })
      n = "text"
      assert.same({ "text", 20 }, { pool:spawn(f):await() })
      n = nil
      assert.same({ nil, 20 }, { pool:spawn(f):await() })
    end)

    it("do not change here when the function changes them there", function()
      local n = 1
      assert.equal(2, pool:spawn(function() n = n + 1 return n end):await())
      assert.equal(1, n)
      assert.equal(2, pool:spawn(function() n = n + 1 return n end):await())
    end)

    it("can be local functions that have some themselves", function()
      local factor = 3
      local function times(x) return x * factor end
      local function both(x) return times(x) + 1 end
      assert.equal(31, pool:spawn(function(x) return both(x) end, 10):await())
      factor = 4
      assert.equal(41, pool:spawn(function(x) return both(x) end, 10):await())
    end)

    it("can be the function itself", function()
      local function fib(n) return n < 2 and n or fib(n - 1) + fib(n - 2) end
      assert.equal(55, pool:spawn(fib, 10):await())
    end)

    it("can be functions that call each other", function()
      local odd
      local function even(n) if n == 0 then return true end return odd(n - 1) end
      function odd(n) if n == 0 then return false end return even(n - 1) end
      assert.is_true(pool:spawn(even, 10):await())
      assert.is_false(pool:spawn(even, 11):await())
    end)

    it("shared by two functions are two copies", function() -- as documented: only objects keep their identity
      local t = {}
      local function set(v) t.v = v end
      local function get() return t.v end
      assert.equal(7, pool:spawn(function() set(7) return get() end):await())
    end)

    it("can be modules and functions of modules, by name", function()
      assert.equal(3, pool:spawn(function() return floor(3.7) end):await())
      assert.equal(4, pool:spawn(function() return ffi.sizeof "int" end):await())
      assert.equal("a", pool:spawn(function() return (string.gsub("b", "b", "a")) end):await())
      assert.equal(6, pool:spawn(function() return threadpool.spawn(function() return 6 end):await() end):await())
    end)

    it("can be a pool, which is there the pool of the worker", function()
      assert.equal(9, pool:spawn(function() return pool:spawn(function() return 9 end):await() end):await())
    end)

    it("that cannot travel are refused by name and line, at the caller's line, before anything runs", function()
      local co, file = coroutine.create(print), io.tmpfile()
      local class = setmetatable({}, { __index = table })
      local unknown = string.gmatch("", ".") -- a C function that no module has
      local ran = pool:stats().pending
      for name, case in pairs {
        co = { function() return co end, "coroutine" },
        file = { function() return file end, "userdata" },
        class = { function() return class end, "table with a metatable" },
        unknown = { function() return unknown end, "C function" },
      } do
        local at = debug.getinfo(case[1], "S").linedefined
        local here = line() + 1
        local err = raised(function() pool:spawn(case[1]) end)
        assert.matches("^[^:]*spawn_spec.lua:" .. here .. ": ", err)
        assert.matches(("upvalue '%s' of the function that begins at spec/spawn_spec.lua:%d: a %s"):format(name, at,
          case[2]), err, 1, true)
      end
      assert.equal(ran, pool:stats().pending)
      file:close()
    end)

    it("of upvalues that cannot travel are told by the function that has them", function()
      local co = coroutine.create(print)
      local here = line() + 1
      local function inner() return co end
      local err = raised(function() pool:spawn(function() return inner() end) end)
      assert.matches(("upvalue 'co' of the function that begins at spec/spawn_spec.lua:%d"):format(here), err, 1, true)
    end)
  end)

  describe("refuses", function()
    it("arguments that cannot travel, by their number", function()
      local here = line() + 1
      local err = raised(function() pool:spawn(function() end, 1, coroutine.create(print)) end)
      assert.matches("spawn_spec.lua:" .. here .. ": argument 2: a coroutine cannot be sent to another thread", err, 1,
        true)
      err = raised(function() pool:spawn({ priority = "low" }, function() end, { { io.tmpfile() } }) end)
      assert.matches("argument 1: a userdata cannot be sent", err, 1, true)
      assert.matches("the function: a C function that no loaded module has",
        raised(function() pool:spawn(string.gmatch("", ".")) end), 1, true)
    end)

    it("a table with a metatable, with a remedy", function()
      local err = raised(function() pool:spawn(function() end, setmetatable({}, {})) end)
      assert.matches("argument 1: a table with a metatable .* __threadpool", err)
    end)

    it("what is no function, at the caller's line", function()
      local here = line() + 1
      local err = raised(function() pool:spawn(5) end)
      assert.matches("spawn_spec.lua:" .. here .. ": spawn: a function expected", err, 1, true)
      assert.matches("got table and nil", raised(function() pool:spawn {} end), 1, true)
      assert.matches("got nil", raised(function() pool:spawn() end), 1, true)
    end)

    it("options that are not known or wrong, at the caller's line", function()
      local function f() end
      local here = line() + 1
      local err = raised(function() pool:spawn({ tiemout = 1 }, f) end)
      assert.matches("spawn_spec.lua:" .. here .. ": spawn: unknown option 'tiemout'", err, 1, true)
      err = raised(function() pool:spawn({ priority = "urgent" }, f) end)
      assert.matches("spawn_spec.lua:" .. here + 2 .. ": option 'priority': expected \"high\"", err, 1, true)
      for _, options in ipairs { { timeout = "1" }, { timeout = 0 }, { timeout = -1 }, { timeout = 0 / 0 } } do
        assert.matches("option 'timeout'", raised(function() pool:spawn(options, f) end), 1, true)
      end
      assert.matches("spawn: option 'blocking': a boolean expected, got number",
        raised(function() pool:spawn({ blocking = 1 }, f) end), 1, true)
    end)

    it("results that cannot travel, by their number, as the task's error", function()
      local value, err = pool:spawn(function() return 1, coroutine.create(print) end):await()
      assert.is_nil(value)
      assert.equal("ERR_LUA", err.name)
      assert.matches("^result 2: a coroutine cannot be sent to another thread", err.message)
    end)
  end)

  it("sends a function once: the second time, its bytecode is not in the request", function()
    local code = { "local x = ... " }
    for i = 1, 2000 do code[#code + 1] = ("x = x + %d.5 "):format(i) end
    local long = assert(loadstring(table.concat(code) .. " return x"))
    assert.is_true(#string.dump(long) > 20000)
    local small = threadpool.new { workers = 1, max_request_bytes = 2000 }
    for _ = 1, 3 do assert.equal(2002000, small:spawn(long, 0):await()) end
    small:close()
  end)

  it("makes more functions than are kept", function()
    for i = 1, 4500 do
      local f = loadstring("return " .. i)
      assert(pool:spawn(f):await() == i)
    end
  end)

  it("runs the functions by priority", function()
    local one = threadpool.new { workers = 1 }
    local open = ffi.new("volatile int[1]")
    local gate = one:spawn(function(flag)
      while flag[0] == 0 and not threadpool.cancelled() do end -- the call keeps LuaJIT from reading the flag once only
    end, threadpool.share(open))
    assert.is_true(help.eventually(one, function() return gate:status() == "running" end))
    -- Low ones have a share of their own, so it is their places on the whole that tell.
    local places, count, tasks = { high = 0, normal = 0, low = 0 }, 0, {}
    for i = 1, 60 do
      local p = ({ "low", "normal", "high" })[i % 3 + 1]
      tasks[i] = one:spawn({ priority = p, on_result = function()
        count = count + 1
        places[p] = places[p] + count
      end }, function() end)
    end
    open[0] = 1
    for i = 1, 60 do tasks[i]:wait() end
    assert.is_true(places.high < places.normal and places.normal < places.low,
      ("%d %d %d"):format(places.high, places.normal, places.low))
    one:close()
  end)

  it("with blocking = true does not hold up the others, however many block in C", function()
    local two = threadpool.new { workers = 2 }
    local blocked = {}
    for i = 1, 8 do
      blocked[i] = two:spawn({ blocking = true }, function()
        pcall(ffi.cdef, "int usleep(unsigned);") -- declarations are each state's own
        for _ = 1, 1000 do
          ffi.C.usleep(10000)
          if threadpool.cancelled() then return "stopped" end
        end
      end)
    end
    for i = 1, 100 do assert.equal(i, two:spawn(function(n) return n end, i):await()) end
    for i = 1, 8 do
      assert.is_false(blocked[i]:poll())
      blocked[i]:cancel()
    end
    for i = 1, 8 do
      local value, err = blocked[i]:await()
      assert.is_true(value == "stopped" or err.name == "ERR_CANCELLED")
    end
    two:close()
  end)

  it("works from the module itself, with the newest pool", function()
    assert.equal(3, threadpool.spawn(function() return 3 end):await())
    assert.equal('{"a":1}', threadpool.submit { op = "echo", args = { a = 1 } }:await())
  end)
end)
