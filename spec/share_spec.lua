local ffi = require "ffi"
local threadpool = require "threadpool"

ffi.cdef "struct share_spec { double x; int n[4]; };"

describe("shared memory", function()
  local pool

  before_each(function() pool = threadpool.new { workers = 2 } end)
  after_each(function() pool:close { drain = 0 } end)

  local function misuse(message, f)
    local ok, err = pcall(f)
    assert.is_false(ok, "no error: " .. message)
    assert.truthy(tostring(err):find(message, 1, true), tostring(err))
    local info = debug.getinfo(f, "S")
    local file, line = tostring(err):match "^(.-):(%d+): "
    assert.equal(info.short_src, file)
    assert.is_true(tonumber(line) >= info.linedefined and tonumber(line) <= info.lastlinedefined, err)
  end

  local function failed(message, ...)
    local value, err = ...
    assert.is_nil(value)
    assert.truthy(tostring(err):find(message, 1, true), tostring(err))
  end

  -- Runs a program in a process of its own (busted keeps what it sees of the FFI from being collected).
  local function run(program)
    local name = os.tmpname()
    local file = assert(io.open(name, "w"))
    file:write(program)
    file:close()
    local out = assert(io.popen("luajit " .. name .. " 2>&1"))
    local text = out:read "*a"
    out:close()
    os.remove(name)
    return text
  end

  describe("share", function()
    it("is memory that workers read and write", function()
      local a = ffi.new("double[?]", 100)
      a[1] = 20
      assert.equal(20, pool:spawn(function(p)
        p[0] = p[1] + 1
        return p[1]
      end, threadpool.share(a)):await())
      assert.equal(21, a[0])
    end)

    it("arrives as a pointer of the right type", function()
      local function type_of(p) return tostring(require("ffi").typeof(p)) end
      local s = ffi.new "struct share_spec[2]"
      local kinds = {
        { ffi.new("float[?]", 3), "ctype<float *>" },
        { ffi.new("uint8_t[7]"), "ctype<unsigned char *>" },
        { ffi.new("const int64_t[2]"), "ctype<const int64_t *>" },
        { ffi.new("int[?][4]", 2), "ctype<int (*)[4]>" },
        { ffi.new("char *[3]"), "ctype<char **>" },
        { ffi.cast("void *", s), "ctype<void *>" },
        { ffi.cast("const char *", "text"), "ctype<const char *>" },
      }
      for _, kind in ipairs(kinds) do
        assert.equal(kind[2], (assert(pool:spawn(type_of, threadpool.share(kind[1])):await())))
      end
    end)

    it("takes structures, in arrays or not, and references", function()
      pool:close()
      pool = threadpool.new { workers = 1, init = function()
        require("ffi").cdef "struct share_spec { double x; int n[4]; };"
      end }
      local array, one = ffi.new "struct share_spec[2]", ffi.new "struct share_spec"
      assert(pool:spawn(function(a, s, r, n)
        a[1].x = 1.5
        s.x, s.n[3] = 2.5, 4
        r.n[0] = 7
        n[2] = 9
        return true
      end, threadpool.share(array), threadpool.share(one), threadpool.share(array[0]),
        threadpool.share(array[1].n)):await())
      assert.equal(1.5, array[1].x)
      assert.equal(2.5, one.x)
      assert.equal(4, one.n[3])
      assert.equal(7, array[0].n[0])
      assert.equal(9, array[1].n[2])
    end)

    it("says so if the type is not declared on the worker", function()
      failed("ctype<struct share_spec *> is not known on this thread: declare it there with ffi.cdef, as in the pool's "
        .. "`init`", pool:spawn(function() end, threadpool.share(ffi.new "struct share_spec")):await())
    end)

    it("travels as an upvalue, in tables, and the same one twice", function()
      local a = threadpool.share(ffi.new "int[2]")
      local t = { { a }, b = a }
      assert.equal(3, (assert(pool:spawn(function(all)
        all.b[0] = 1
        a[1] = all[1][1][0] + 1
        return a[0] + a[1]
      end, t):await())))
    end)

    it("can be shared again by the worker that has got it", function()
      local a = ffi.new("int[3]")
      assert(pool:spawn(function(p)
        local inner = require("threadpool").here():spawn(function(q) q[2] = 5 return true end,
          require("threadpool").share(p))
        return inner:await()
      end, threadpool.share(a)):await())
      assert.equal(5, a[2])
    end)

    it("is not for results, partial results and init", function()
      local message = "shared memory can be given to tasks only: have them write to what was shared with them"
      failed(message, pool:spawn(function()
        return require("threadpool").share(require("ffi").new "int[1]")
      end):await())
      failed(message, pool:spawn(function()
        require("threadpool").emit(require("threadpool").share(require("ffi").new "int[1]"))
      end):await())
      local mine = threadpool.share(ffi.new "int[1]")
      local ok, err = pcall(threadpool.new, { init = function() return mine end })
      assert.is_false(ok)
      assert.truthy(err:find(message, 1, true), err)
    end)

    it("refuses what is no memory", function()
      misuse("share: memory of the FFI expected, got a table", function() threadpool.share {} end)
      misuse("share: memory of the FFI expected, got nil", function() threadpool.share() end)
      misuse("share: ctype<int64_t> is a number, not memory: pass it as it is", function() threadpool.share(1LL) end)
      misuse("share: ctype<int [?]> is a ctype: pass it as it is", function() threadpool.share(ffi.typeof "int[?]") end)
      misuse("share: it is a NULL pointer", function() threadpool.share(ffi.cast("char *", 0)) end)
      misuse("has no name", function() threadpool.share(ffi.new "struct { int x; }") end)
      misuse("is of a function", function() threadpool.share(ffi.cast("void (*)(int)", 8)) end)
    end)

    it("stays until the tasks that got it have ended, whoever drops what", function()
      assert.equal("alive collected\n", run [[
        local ffi, threadpool = require "ffi", require "threadpool"
        local pool = threadpool.new { workers = 2 }
        local collected = {}
        local function give(i, kind)
          local a = ffi.gc(ffi.new("double[?]", 100000), function() collected[i] = true end)
          local task = pool:spawn(function(a)
            require("threadpool").sleep(0.3)
            a[0], a[99999] = 1, 1
          end, threadpool.share(a))
          if kind == "detach" then task:detach() end
        end
        for i = 1, 10 do give(i, i % 2 == 0 and "detach" or "drop") end
        for _ = 1, 5 do collectgarbage() end
        io.write(next(collected) == nil and "alive " or "gone ")
        local deadline = os.time() + 20
        while #collected < 10 and os.time() < deadline do
          pool:pump(0.01)
          collectgarbage()
        end
        print(#collected == 10 and "collected" or "kept")
      ]])
    end)

    it("does not stop a detached task that has more to say than its window takes", function()
      pool:close()
      pool = threadpool.new { workers = 1, window = 2 }
      local done = ffi.new "int[1]"
      local task = pool:spawn(function(p)
        for i = 1, 100 do require("threadpool").emit(i) end
        p[0] = 1
      end, threadpool.share(done))
      task:detach()
      local deadline = os.time() + 20
      while done[0] == 0 and os.time() < deadline do pool:pump(0.01) end
      assert.equal(1, done[0])
      assert.equal("done", task:status())
    end)
  end)

  describe("region", function()
    it("is cdata here, and a symbol in requests", function()
      local region = assert(pool:region("buffer", 64))
      assert.equal(0, region.data[63])
      assert.equal("", region:string())
      assert(pool:submit({ op = "write_memory", args = { write_to = "buffer", data = "Hello" } }):await())
      assert.equal("Hello", region:string())
      assert.equal("Hel", region:string(3))
      assert.equal("Hello\0", region:string(6))
      region.data[0] = ("J"):byte()
      assert.equal("Jello", pool:submit({ op = "read_memory", args = { read_from = "buffer", length = 5 } }):await())
      assert.equal("threadpool.Region 'buffer' (64 bytes)", tostring(region))
    end)

    it("can have elements of any type with a name", function()
      local region = assert(pool:region("numbers", 1000, "float"))
      assert.equal(1000, region.size)
      assert.equal(4000, region.bytes)
      assert.equal("ctype<float [?]>", tostring(ffi.typeof(region.data)))
      assert.equal(16, assert(pool:region("structs", 2, ffi.typeof "struct share_spec")).bytes / 3)
    end)

    it("can be given to functions", function()
      local region = assert(pool:region("shared", 10, "double"))
      assert(pool:spawn(function(p) p[3] = 0.5 return true end, region):await())
      assert.equal(0.5, region.data[3])
      assert(pool:for_range(10, function(from, to, p) for i = from, to - 1 do p[i] = i end end, region))
      assert.equal(9, region.data[9])
    end)

    it("gives its name back when it is closed", function()
      local region = assert(pool:region("name", 8))
      failed("ERR_BUSY", pool:region("name", 8))
      assert.is_true(region:close())
      assert.is_false(region:close())
      assert.is_nil(region.data)
      misuse("region 'name': it is closed", function() return region:string() .. "" end)
      local ok, err = pcall(pool.spawn, pool, function() end, region)
      assert.is_false(ok)
      assert.truthy(err:find("argument 1: the region 'name' is closed", 1, true), err)
      assert.equal("threadpool.Region 'name' (closed)", tostring(region))
      local again = assert(pool:region("name", 8))
      assert.is_true(again:close())
      failed("unknown symbol: name", pool:submit({ op = "read_memory", args = { read_from = "name" } }):await())
    end)

    it("is closed when it is collected", function()
      assert(pool:region("forgotten", 8))
      local again
      for _ = 1, 10 do
        collectgarbage()
        again = pool:region("forgotten", 8)
        if again then break end
      end
      assert.truthy(again)
    end)

    it("can be closed after the pool", function()
      local region = assert(pool:region("late", 8))
      pool:close()
      region.data[0] = 65
      assert.equal("A", region:string())
      assert.is_true(region:close())
      failed("ERR_SHUTDOWN", pool:region("later", 8))
    end)

    it("says what is wrong with its arguments", function()
      misuse("region: name: a string expected, got nil", function() pool:region() end)
      misuse("region: size: a whole number expected, at least 1 and less than 4 GiB in all; got 0",
        function() pool:region("a", 0) end)
      misuse("region: size: a whole number expected", function() pool:region("a", 2 ^ 30, "double") end)
      misuse("region: size: a whole number expected", function() pool:region("a", "8") end)
      misuse("region: ctype:", function() pool:region("a", 1, "no_such_type") end)
      misuse("expected the type of an element", function() pool:region("a", 1, "int[3]") end)
      failed("ERR_INVALID_ARGUMENT", pool:region("", 1))
      failed("ERR_INVALID_ARGUMENT", pool:region(("x"):rep(64), 1))
      local region = assert(pool:region("a", 4))
      misuse("region 'a': string: 0 to 4 bytes expected, got 5", function() region:string(5) end)
      failed("region: make it in the program, and pass it to the function", pool:spawn(function()
        return require("threadpool").here():region("b", 1)
      end):await())
    end)
  end)

  describe("for_range", function()
    it("covers the range exactly once", function()
      for _, n in ipairs { 0, 1, 2, 3, 7, 64, 1000, 12345 } do
        local seen = ffi.new("uint8_t[?]", n + 1)
        assert.is_true(pool:for_range(n, function(from, to, p)
          assert(from < to)
          for i = from, to - 1 do p[i] = p[i] + 1 end
        end, seen))
        for i = 0, n - 1 do assert(seen[i] == 1) end
        assert.equal(0, seen[n])
      end
    end)

    it("takes a first and a last number, and the least size of a piece", function()
      local sizes = threadpool.share(ffi.new "int[200]")
      assert.is_true(pool:for_range({ -100, 100, grain = 30 }, function(from, to, p)
        for i = from, to - 1 do p[i + 100] = to - from end
      end, sizes))
      for i = 0, 199 do assert.is_true(sizes.data[i] >= 20) end -- the last one is what is left
      assert.is_true(sizes.data[0] >= 30)
      assert.is_true(pool:for_range({ 5, 5 }, function() error "never" end))
      assert.is_true(pool:for_range({ 5, 3 }, function() error "never" end))
    end)

    it("has several pieces for each worker", function()
      local pieces = threadpool.share(ffi.new "int[1000]")
      pool:for_range(1000, function(from, _, p) p[from] = 1 end, pieces)
      local n = 0
      for i = 0, 999 do n = n + pieces.data[i] end
      assert.is_true(n >= 8, n .. " pieces")
    end)

    it("passes arguments: memory is shared, the rest copied", function()
      local a = ffi.new("int64_t[?]", 100)
      assert.is_true(pool:for_range(100, function(from, to, x, p, y, t)
        for i = from, to - 1 do p[i] = x + y + t.z end
      end, 1, a, 2LL, { z = 3 }))
      for i = 0, 99 do assert.equal(6LL, a[i]) end
    end)

    it("gives the first error, when all pieces have ended", function()
      local running = threadpool.share(ffi.new "int[2]")
      local ok, err = pool:for_range({ 0, 100, grain = 1 }, function(from, _, p)
        if from == 0 then error("the first piece", 0) end
        p[1] = p[1] + 1
      end, running)
      assert.is_nil(ok)
      assert.equal("the first piece", err.message)
      assert.truthy(err.traceback:find "submitted at spec/share_spec.lua")
      local before = running.data[1]
      pool:pump(0.02)
      assert.equal(before, running.data[1])
      assert.is_true(before < 99)
    end)

    it("yields in coroutines, and works on workers", function()
      local a = ffi.new("double[?]", 1000)
      local other = false
      local function add(from, to, p) for i = from, to - 1 do p[i] = p[i] + 1 end end
      threadpool.run(function()
        threadpool.go(function() other = true end)
        assert(pool:for_range(1000, add, a))
      end)
      assert.is_true(other)
      assert(pool:spawn(function(p) return pool:for_range(1000, add, p) end, threadpool.share(a)):await())
      for i = 0, 999 do assert.equal(2, a[i]) end
    end)

    it("says what is wrong with its arguments", function()
      local function f() end
      misuse("for_range: n: a whole number expected, got nil", function() pool:for_range(nil, f) end)
      misuse("for_range: n: a whole number expected, got 1.5", function() pool:for_range(1.5, f) end)
      misuse("for_range: last: a whole number expected, got nil", function() pool:for_range({ 1 }, f) end)
      misuse("for_range: unknown option 'grains': expected grain",
        function() pool:for_range({ 0, 1, grains = 1 }, f) end)
      misuse("for_range: grain: a whole number expected, 1 or more",
        function() pool:for_range({ 0, 1, grain = 0 }, f) end)
      misuse("for_range: a function expected, got nil", function() pool:for_range(1) end)
      local buffer = io.tmpfile()
      misuse("for_range: upvalue 'buffer'", function() pool:for_range(1, function() return buffer end) end)
    end)
  end)
end)
