-- A function that does not end when it is told to is made to (csrc/lua/stop.h). The clock decides nothing here but how
-- long the tests take: each of them waits for an end that must come.

local threadpool = require "threadpool"

local stress = os.getenv "TP_STRESS"

local function jit_loop()
  local x = 0
  while true do x = x + 1 end
end

local endless = {
  ["compiled loop"] = jit_loop,
  ["loop in the interpreter"] = function()
    jit.off(true)
    local x = 0
    while true do x = x + 1 end
  end,
  ["loop of protected calls"] = function()
    while true do
      pcall(function()
        local x = 0
        for i = 1, 1e12 do x = x + i end
      end)
    end
  end,
  ["loop that allocates"] = function()
    local t = {}
    while true do t = #t < 100 and { t, {} } or {} end
  end,
  ["loop that makes strings"] = function()
    local s = ""
    while true do s = #s < 1000 and s .. "x" or "" end
  end,
  ["loop in a callback of C code of Lua's own"] = function()
    table.sort({ 1, 2, 3 }, function()
      local x = 0
      while true do x = x + 1 end
    end)
  end,
  ["loop of coroutines"] = function()
    while true do
      local co = coroutine.wrap(function()
        for i = 1, 100 do coroutine.yield(i) end
      end)
      for _ = 1, 100 do co() end
    end
  end,
  ["loop that waits"] = function()
    local tp = require "threadpool"
    while true do tp.sleep(0.001) end
  end,
}

describe("a function that never ends", function()
  local pool

  before_each(function() pool = assert(threadpool.new { workers = 2, grace = 0.01 }) end)
  after_each(function() pool:close { drain = 0 } end)

  for name, fn in pairs(endless) do
    it("is stopped when it is cancelled: a " .. name, function()
      for _ = 1, 3 do
        local task = pool:spawn(fn)
        while task:status() == "queued" do end
        assert.is_true(task:cancel())
        local result, err = task:await(60)
        assert.is_nil(result)
        assert.equal("ERR_CANCELLED", err.name)
      end
      assert.equal(3, pool:spawn(function(a, b) return a + b end, 1, 2):await(60))
    end)
  end

  it("is stopped when its time is over", function()
    local result, err = pool:spawn({ timeout = 0.02 }, jit_loop):await(60)
    assert.is_nil(result)
    assert.equal("ERR_TIMEOUT", err.name, tostring(err))
  end)

  it("is stopped when its pool is closed", function()
    local task = pool:spawn(jit_loop)
    pool:close { drain = 0 }
    local result, err = task:await(60)
    assert.is_nil(result)
    assert.equal("ERR_CANCELLED", err.name)
  end)

  it("is stopped when it is the __tostring of an error, or a callback", function()
    local task = pool:spawn({ timeout = 0.02 }, function()
      error(setmetatable({}, { __tostring = function() while true do end end }))
    end)
    assert.equal("ERR_TIMEOUT", select(2, task:await(60)).name)
    task = pool:spawn({ timeout = 0.1 }, function()
      local tp = require "threadpool"
      tp.spawn(function() return 1 end):on { on_result = function() while true do end end }
      tp.sleep(3600)
    end)
    assert.equal("ERR_TIMEOUT", select(2, task:await(60)).name)
    assert.equal(3, pool:spawn(function(a, b) return a + b end, 1, 2):await(60))
  end)

  it("does not begin if it was cancelled before", function()
    local both = { pool:spawn(jit_loop), pool:spawn(jit_loop) }
    local task = pool:spawn(function() return 1 end)
    task:cancel()
    for _, t in ipairs(both) do t:cancel() end
    assert.equal("ERR_CANCELLED", select(2, task:await(60)).name)
  end)

  it("takes along only tasks of its own state, and they say why", function()
    local waiting = {}
    for i = 1, 20 do
      waiting[i] = pool:spawn(function(n)
        require "threadpool".sleep(0.3)
        return n
      end, i)
    end
    while pool:stats().executed < 20 do pool:pump(0.01) end
    local task = pool:spawn(jit_loop)
    while task:status() == "queued" do end
    task:cancel()
    assert.equal("ERR_CANCELLED", select(2, task:await(60)).name)
    for i = 1, 20 do
      local result, err = waiting[i]:await(60)
      if result ~= i then
        assert.equal("ERR_LUA", err.name)
        assert.matches("its Lua state was lost", err.message)
      end
    end
  end)

  local function memory()
    local status = assert(io.open("/proc/self/status"))
    local kb = tonumber(status:read("*a"):match("VmRSS:%s*(%d+)"))
    status:close()
    local maps = 0
    for _ in io.lines("/proc/self/maps") do maps = maps + 1 end
    return kb, maps
  end

  it("leaves no memory and no mappings behind", function()
    if (os.getenv "LD_PRELOAD" or ""):find "san" then
      pending "a sanitizer keeps memory that was freed"
    end
    local function stop(n)
      for _ = 1, n do
        local task = pool:spawn(jit_loop)
        while task:status() == "queued" do end
        task:cancel()
        assert.equal("ERR_CANCELLED", select(2, task:await(60)).name)
      end
      collectgarbage()
      collectgarbage()
    end
    stop(50)
    local kb, maps = memory()
    local n = stress and 1000 or 100
    stop(n)
    local kb_after, maps_after = memory()
    -- A state takes more than 300 KB, and its machine code a mapping: what is kept by one stop in ten would be seen.
    assert.is_true(kb_after - kb < n * 30, ("%d KB became %d"):format(kb, kb_after))
    assert.is_true(maps_after - maps < n / 10, ("%d mappings became %d"):format(maps, maps_after))
  end)
end)
