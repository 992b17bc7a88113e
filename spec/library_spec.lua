local ffi = require "ffi"

-- Runs a program in a process of its own: what it writes, errors included.
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

describe("threadpool.library", function()
  it("is the namespace of the C library", function()
    local C = require "threadpool.library"
    assert.equal(require("threadpool.cdef").abi, C.threadpool_abi())
    assert.equal("ERR_TIMEOUT", ffi.string(C.threadpool_error_name(C.ERR_TIMEOUT)))
    assert.equal(3, C.SYMBOL_READ_WRITE)
    assert.equal(0, ffi.new("threadpool_options").workers)
  end)

  it("is the library that the core module is in", function()
    local C = require "threadpool.library"
    local core = require "threadpool.core"
    local pool = require("threadpool").new { workers = 3 }
    assert.equal(3, C.threadpool_workers(ffi.cast("threadpool_t *", core.pointer(pool._core))))
    pool:close()
  end)

  it("can be loaded again when package.loaded was cleared", function()
    assert.equal("true\n", run [[
      local first = require "threadpool.library"
      package.loaded["threadpool.library"], package.loaded["threadpool.cdef"] = nil, nil
      local second = require "threadpool.library"
      print(first.threadpool_abi() == second.threadpool_abi() and second.threadpool_workers(nil) == 0)
    ]])
  end)

  it("can be loaded by two Lua states of one process", function()
    local pool = require("threadpool").new { workers = 2 }
    local worker_abi = pool:spawn(function()
      return require("threadpool.library").threadpool_abi()
    end):await()
    pool:close()
    assert.equal(require("threadpool.cdef").abi, worker_abi)
  end)

  it("says so when the Lua files and the library do not fit together", function()
    local text = run [[
      package.loaded["threadpool.cdef"] = { abi = 99, text = "nonsense" }
      require "threadpool.library"
    ]]
    assert.truthy(text:find("are for version 99 of the C interface, and ", 1, true), text)
    assert.truthy(text:find("has version " .. require("threadpool.cdef").abi .. ": install both from the same release",
      1, true), text)
  end)

  it("says so when a name is taken by another declaration", function()
    local text = run [[
      require("ffi").cdef "typedef struct result { char c; } result_t;"
      require "threadpool.library"
    ]]
    assert.truthy(text:find("the C declarations of the library cannot be made", 1, true), text)
    assert.truthy(text:find("'result'", 1, true), text)
  end)
end)
