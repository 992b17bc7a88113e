local ffi = require "ffi"
local threadpool = require "threadpool"

ffi.cdef [[
  enum cdata_spec_enum { CDATA_SPEC_A, CDATA_SPEC_B };
  struct cdata_spec_struct { int x; };
]]

describe("numbers of the FFI", function()
  local pool

  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close() end)

  local function echo(...)
    return pool:spawn(function(...) return ... end, ...):await()
  end

  local function refused(message, value)
    local ok, err = pcall(pool.spawn, pool, function() end, value)
    assert.is_false(ok)
    assert.truthy(err:find(message, 1, true), err)
    return err
  end

  it("keep their type and their value", function()
    local values = { 2LL ^ 62, -1LL, 0ULL - 1, 9007199254740993LL, ffi.new("complex", 1, -2),
      ffi.new("complex float", 0.5, 3) }
    for _, value in ipairs(values) do
      local got = echo(value)
      assert.equal(tostring(ffi.typeof(value)), tostring(ffi.typeof(got)))
      assert.equal(tostring(value), tostring(got))
    end
  end)

  it("of every scalar type come back as they were", function()
    for _, name in ipairs { "char", "int8_t", "uint8_t", "short", "unsigned short", "int", "uint32_t", "long",
      "unsigned long", "size_t", "float", "double" } do
      local got = echo(ffi.new(name, 100))
      assert.equal(tostring(ffi.typeof(name)), tostring(ffi.typeof(got)))
      assert.equal(100, tonumber(got))
    end
    assert.is_true(tonumber(echo(ffi.new("bool", true))) == 1)
    assert.equal("ctype<int>", tostring(ffi.typeof(echo(ffi.new("const int", 1)))))
  end)

  it("are numbers on the worker", function()
    assert.equal(2LL ^ 40 + 1, pool:spawn(function(n) return n + 1 end, 2LL ^ 40):await())
  end)

  it("travel inside of tables, as keys, and as upvalues", function()
    local n = 7LL
    local t = echo { a = { 1LL, 2ULL } }
    assert.equal(1LL, t.a[1])
    assert.equal(2ULL, t.a[2])
    assert.equal(14LL, pool:spawn(function() return n * 2 end):await())
  end)

  it("are joined by ctypes, which travel by name", function()
    assert.equal(ffi.typeof "int[?]", echo(ffi.typeof "int[?]"))
    local doubles = ffi.typeof "double[3]"
    assert.equal(24, pool:spawn(function()
      return require("ffi").sizeof(doubles)
    end):await())
  end)

  it("do not include enums: the message says what to do", function()
    refused("argument 1: ctype<enum cdata_spec_enum> cannot be sent to another thread: pass tonumber of it",
      ffi.new("enum cdata_spec_enum", 1))
  end)

  it("do not include memory: pointers, arrays, structures, references", function()
    local remedy = " cannot be sent to another thread: pass the memory with threadpool.share, or in a region"
    local s = ffi.new "struct cdata_spec_struct[1]"
    refused("argument 1: ctype<int [?]>" .. remedy, ffi.new("int[?]", 3))
    refused("ctype<char [4]>" .. remedy, ffi.new "char[4]")
    refused("ctype<struct cdata_spec_struct>" .. remedy, ffi.new "struct cdata_spec_struct")
    refused("ctype<struct cdata_spec_struct &>" .. remedy, s[0])
    refused("ctype<float (*)[4]>" .. remedy, ffi.cast("float (*)[4]", 8))
    refused("ctype<void *>" .. remedy, ffi.cast("void *", 1))
    refused("ctype<void *>" .. remedy, ffi.cast("void *", 0))
  end)

  it("do not include functions", function()
    ffi.cdef "int abs(int);"
    local remedy = " cannot be sent to another thread: call functions of C by their names on the other thread"
    refused(remedy, ffi.C.abs)
    refused(remedy, ffi.cast("int (*)(int)", ffi.C.abs))
    local callback = ffi.cast("int (*)(int)", function(x) return x end)
    refused(remedy, callback)
    callback:free()
  end)

  it("name the upvalue and the function that they are in", function()
    local buffer = ffi.new "char[8]"
    local line = debug.getinfo(1, "l").currentline + 1
    local ok, err = pcall(pool.spawn, pool, function() return buffer end)
    assert.is_false(ok)
    assert.truthy(err:find(("upvalue 'buffer' of the function that begins at spec/cdata_spec.lua:%d: ctype<char [8]>")
      :format(line), 1, true), err)
  end)

  it("cannot be of a ctype without a name", function()
    refused("has no name: declare it as `struct name { ... }`", ffi.typeof "struct { int x; }")
    refused("is of a function", ffi.typeof "int (*)(int)")
  end)

  it("of a ctype that the other thread has not declared are an error there", function()
    local value, err = echo(ffi.typeof "struct cdata_spec_struct")
    assert.is_nil(value)
    assert.truthy(tostring(err):find("ctype<struct cdata_spec_struct> is not known on this thread", 1, true),
      tostring(err))
  end)

  it("that a worker returns come to the program", function()
    assert.equal(5ULL, pool:spawn(function() return 5ULL end):await())
    local value, err = pool:spawn(function() return require("ffi").new "int[2]" end):await()
    assert.is_nil(value)
    assert.truthy(tostring(err):find("ctype<int [2]> cannot be sent to another thread", 1, true), tostring(err))
  end)
end)
