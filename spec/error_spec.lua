local help = dofile "spec/help/common.lua"
local threadpool = require "threadpool"
local Error = threadpool.Error
local line = help.line

describe("an error", function()
  local pool
  setup(function() pool = threadpool.new { workers = 2 } end)
  teardown(function() pool:close { drain = 0 } end)

  local function error_of(...)
    local value, err = pool:spawn(...):await()
    assert.is_nil(value)
    assert.is_true(Error.is(err))
    return err
  end

  it("has code, name, message, task_id, and prints as one line with the remedy", function()
    local task = pool:submit { op = "file_read", args = { path = "/nowhere" } }
    local _, err = task:await()
    assert.equal("ERR_IO", err.name)
    assert.is_true(err.code < 0)
    assert.equal(task.id, err.task_id)
    assert.matches("/nowhere", err.message, 1, true)
    assert.is_nil(tostring(err):find("\n", 1, true))
    assert.equal(1, tostring(err):find("ERR_IO: ", 1, true))
    _, err = pool:submit { op = "nothing" }:await()
    assert.is_string(err.remedy)
    assert.matches("(" .. err.remedy .. ")", tostring(err), 1, true)
  end)

  it("in a function has the message with its place, and the worker's traceback", function()
    local here = line() + 1
    local function inner() error "boom" end
    local err = error_of(function()
      inner()
      return 1 -- no tail call, so that it is in the traceback
    end)
    assert.equal("ERR_LUA", err.name)
    assert.equal(("spec/error_spec.lua:%d: boom"):format(here), err.message)
    assert.matches(("error_spec.lua:%d: in function 'inner'"):format(here), err.traceback, 1, true)
    assert.matches(("error_spec.lua:%d: in function"):format(here + 2), err.traceback, 1, true)
  end)

  it("has the line that submitted, also through the module", function()
    local here = line() + 1
    local err = error_of(function() error "x" end)
    assert.is_nil(err.traceback:find("submitted at [^\n]*error_spec.lua:" .. here)) -- error_of did
    assert.matches("submitted at [^\n]*error_spec.lua:%d+$", err.traceback)
    local at = line() + 1
    local task = pool:spawn(error, "x")
    assert.matches(("submitted at [^\n]*error_spec.lua:%d$"):format(at), select(2, task:await()).traceback)
    task = pool:spawn({ priority = "low" }, error, "x")
    assert.matches(("error_spec.lua:%d$"):format(at + 2), select(2, task:await()).traceback)
  end)

  it("of Lua itself is one like any other", function()
    local err = error_of(function() return nil + 1 end)
    assert.matches("error_spec.lua:%d+: attempt to perform arithmetic on a nil value", err.message)
    err = error_of(function()
      local function deep(n) return 1 + deep(n + 1) end
      return deep(1)
    end)
    assert.matches("stack overflow", err.message, 1, true)
  end)

  it("whose value is a table has it as value", function()
    local err = error_of(function() error { reason = "quota", left = 0 } end)
    assert.equal("ERR_LUA", err.name)
    assert.same({ reason = "quota", left = 0 }, err.value)
    assert.matches("stack traceback", err.traceback, 1, true)
    assert.matches("ERR_LUA: ", tostring(err), 1, true)
  end)

  it("whose value is nil, false or a number is told, too", function()
    assert.equal("ERR_LUA", error_of(function() error() end).name)
    assert.equal(false, error_of(function() error(false) end).value)
    local err = error_of(function() error(404) end)
    assert.equal("ERR_LUA", err.name)
    assert.matches("404", err.message, 1, true)
  end)

  it("whose value cannot travel is told as text", function()
    local err = error_of(function()
      error(setmetatable({}, { __tostring = function() return "I am one" end }))
    end)
    assert.equal("ERR_LUA", err.name)
    assert.matches("I am one", err.message, 1, true)
    assert.matches("stack traceback", err.traceback, 1, true)
    err = error_of(function() error(coroutine.create(print)) end)
    assert.equal("ERR_LUA", err.name)
    assert.matches("thread", err.message, 1, true)
    err = error_of(function() error(setmetatable({}, { __tostring = function() error "again" end })) end)
    assert.equal("ERR_LUA", err.name)
  end)

  it("object that is raised arrives as it was, with the places on the way", function()
    local err = error_of(function()
      local value, why = threadpool.submit { op = "nothing" }:await()
      if not value then error(why) end
    end)
    assert.equal("ERR_UNKNOWN_OPCODE", err.name)
    assert.matches("nothing", err.message, 1, true)
    assert.is_string(err.remedy)
    assert.matches("submitted at", err.traceback, 1, true)
  end)

  it("object as argument and result is one", function()
    local err = Error.new(-1, "made here", { value = { 1 } })
    local back, name = pool:spawn(function(e) return e, e.name end, err):await()
    assert.is_true(Error.is(back))
    assert.equal("made here", back.message)
    assert.same({ 1 }, back.value)
    assert.equal(err.name, name)
    assert.equal(tostring(err), tostring(back))
  end)

  it("of a nested spawn names both lines", function()
    local err = error_of(function()
      local value, why = threadpool.spawn(function() error "at the bottom" end):await()
      if not value then error(why, 0) end
    end)
    assert.matches("at the bottom", err.message, 1, true)
    local _, places = err.traceback:gsub("submitted at", "")
    assert.equal(2, places)
  end)

  it("in the way values are packed is told", function()
    local broken = setmetatable({}, { __threadpool = "no_such_module" })
    local err = help.raised(function() pool:spawn(function() end, broken) end)
    assert.matches("no_such_module", err, 1, true)
    assert.equal(1, pool:spawn(function() return 1 end):await())
  end)

  it("is not what is no error", function()
    for _, v in ipairs { 1, "x", {}, print, setmetatable({}, {}) } do assert.is_false(Error.is(v)) end
    assert.is_false(Error.is(nil))
  end)
end)

describe("a class", function()
  it("travels as its module says", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(require "lfs".mkdir(dir)) -- a shell would be under the sanitizer too
    local f = io.open(dir .. "/spec_point.lua", "w")
    f:write [[
      local Point = {}
      Point.__index = Point
      Point.__threadpool = "spec_point"
      function Point.new(x, y) return setmetatable({ x = x, y = y }, Point) end
      function Point:sum() return self.x + self.y end
      function Point.pack(p) return p.x, p.y end
      Point.unpack = Point.new
      return Point
    ]]
    f:close()
    local before = package.path
    package.path = dir .. "/?.lua;" .. before
    local pool = threadpool.new { workers = 1 }
    local Point = require "spec_point"
    local back, sum = pool:spawn(function(p) return p, p:sum() end, Point.new(1, 2)):await()
    assert.equal(3, sum)
    assert.equal(Point, getmetatable(back))
    assert.equal(3, back:sum())
    local nested = pool:spawn(function(t) return t[1]:sum() + t[2].p:sum() end,
      { Point.new(1, 2), { p = Point.new(3, 4) } }):await()
    assert.equal(10, nested)
    pool:close()
    package.path = before
    os.remove(dir .. "/spec_point.lua")
    os.remove(dir)
  end)
end)
