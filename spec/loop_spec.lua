local help = dofile "spec/help/common.lua"
local threadpool = require "threadpool"
local aside = help.aside

-- What a program in any of the loops does; `l` is the loop: start(fn) a coroutine of its own, pause(seconds) in it,
-- with its own timers, run().
local function shared(name, l)
  describe("in the loop of " .. name, function()
    local pool
    setup(function()
      pool = threadpool.new { workers = 2 }
      l.attach()
    end)
    teardown(function()
      l.detach()
      pool:close { drain = 0 }
    end)

    it("its timers and our awaits interleave, in one coroutine and in several", function()
      local order = {}
      local function say(what) order[#order + 1] = what end
      -- The gate opens when the loop's own timer has fired three times: only a loop that goes on while we await can
      -- do that.
      local gate = pool:spawn(function()
        local n = 0
        while n < 3 and not threadpool.cancelled() do
          if threadpool.emit(n) then n = n + 1 end
        end
        return "gate"
      end)
      l.start(function()
        for i = 1, 3 do
          l.pause(0.005)
          say("timer " .. i)
          assert(gate:next() == i - 1)
          say("part " .. i)
        end
      end)
      l.start(function()
        say(gate:await())
        l.pause(0.03)
        say(pool:spawn(function() return "after" end):await())
      end)
      l.start(function()
        threadpool.sleep(0.002)
        say("sleep")
      end)
      l.run()
      local at = {}
      for i, what in ipairs(order) do at[what] = i end
      assert.equal(9, #order, table.concat(order, ", "))
      for i = 1, 3 do
        assert.is_true(at["timer " .. i] < at["part " .. i])
        if i > 1 then assert.is_true(at["part " .. i - 1] < at["timer " .. i]) end
      end
      assert.is_true(at.gate < at.after)
      assert.is_true(at.sleep < at.after)
    end)

    it("the loop's timers fire while a coroutine awaits, whatever it awaits", function()
      local ticks, task = 0, pool:submit { op = "sleep", args = { ms = 3600000 } }
      local err
      l.start(function() _, err = task:await() end) -- luacheck: ignore
      l.start(function()
        for _ = 1, 5 do
          l.pause(0.002)
          ticks = ticks + 1
        end
        task:cancel() -- so the await ends after the fifth tick, and not before
      end)
      l.run()
      assert.equal(5, ticks)
      assert.equal("ERR_CANCELLED", err.name)
    end)

    it("streams, and awaits with seconds work", function()
      local seen = {}
      l.start(function()
        for part in pool:stream { op = "echo", args = { parts = { "a", "b", "c" } } } do seen[#seen + 1] = part end
        local task = pool:submit { op = "sleep", args = { ms = 3600000 } }
        local _, err = task:await(0.01)
        seen[4] = err.name
        task:cancel()
      end)
      l.run()
      assert.same({ "a", "b", "c", "ERR_TIMEOUT" }, seen)
    end)

    it("callbacks are called", function()
      local got
      pool:spawn({ on_result = function(n) got = n end }, function() threadpool.sleep(0.01) return 5 end)
      l.run()
      assert.equal(5, got)
    end)

    it("our own coroutines run, also when started from its", function()
      local order = {}
      local function say(what) order[#order + 1] = what end
      threadpool.go(function()
        say(pool:spawn(function() return "early" end):await())
      end)
      l.start(function()
        l.pause(0.02)
        say("loop")
        threadpool.go(function()
          threadpool.sleep(0.002)
          say("late")
        end)
      end)
      l.run()
      assert.same({ "early", "loop", "late" }, order)
    end)

    it("run inside a coroutine of its waits like an await", function()
      local order = {}
      local function say(what) order[#order + 1] = what end
      l.start(function()
        say(threadpool.run(function()
          threadpool.go(function() threadpool.sleep(0.05) end)
          return "run"
        end))
      end)
      l.start(function()
        l.pause(0.01)
        say("meanwhile")
      end)
      l.run()
      assert.same({ "meanwhile", "run" }, order)
    end)

    it("waiting for room lets the loop go on", function()
      local small = threadpool.new { workers = 1, max_pending = 2 }
      local ticks, tasks = 0, {}
      l.start(function()
        for i = 1, 6 do tasks[i] = small:submit { op = "sleep", args = { ms = 10 } } end
        for i = 1, 6 do assert(tasks[i]:await()) end
      end)
      l.start(function()
        for _ = 1, 3 do
          l.pause(0.002)
          ticks = ticks + (tasks[6] and 0 or 1)
        end
      end)
      l.run()
      assert.equal(3, ticks)
      assert.is_truthy(tasks[6])
      small:close()
    end)

    it("errors of tasks are returned there, and yields cross pcall", function()
      local ok, err, message
      l.start(function()
        _, message = pool:spawn(error, "far away"):await() -- luacheck: ignore
        ok, err = pcall(function()
          pool:spawn(function() end):await()
          error("near", 0)
        end)
      end)
      l.run()
      assert.matches("far away", message.message, 1, true)
      assert.same({ false, "near" }, { ok, err })
    end)

    it("a callback that raises, and a coroutine of ours, do not end the loop", function()
      local went_on = false
      local seen = aside(function()
        pool:spawn({ on_result = function() error "in a callback" end }, function() end)
        threadpool.go(function() error "in go" end)
        l.start(function()
          threadpool.sleep(0.02)
          went_on = true
        end)
        l.run()
      end)
      assert.is_true(went_on)
      assert.equal(2, #seen)
    end)

    it("it waits without using the processor, and ends by itself", function()
      local before = os.clock()
      l.start(function() threadpool.sleep(0.3) end)
      l.run()
      assert.is_true(os.clock() - before < 0.15, os.clock() - before)
    end)

    it("it ends though tasks run on that nobody waits for", function()
      local task = pool:submit { op = "sleep", args = { ms = 3600000 } }
      l.start(function() task:await(0.01) end)
      l.run()
      assert.is_false(task:poll())
      task:cancel()
      l.run()
    end)
  end)
end

local has_luv, uv = pcall(require, "luv")
if has_luv then
  local adapter = require "threadpool.loop.luv"
  shared("luv", {
    attach = adapter.attach,
    detach = adapter.detach,
    start = function(fn) coroutine.wrap(fn)() end,
    pause = function(seconds)
      local co, timer = coroutine.running(), uv.new_timer()
      timer:start(seconds * 1000, 0, function()
        timer:close()
        local ok, err = coroutine.resume(co)
        if not ok then error(err, 0) end
      end)
      coroutine.yield()
    end,
    run = function() uv.run() end,
  })
else
  pending "in the loop of luv: lua-luv is not installed"
end

local has_cqueues, cqueues = pcall(require, "cqueues")
if has_cqueues then
  local adapter = require "threadpool.loop.cqueues"
  local cq = cqueues.new()
  shared("cqueues", {
    attach = function() adapter.attach(cq) end,
    detach = function() adapter.detach(cq) end,
    start = function(fn) cq:wrap(fn) end,
    pause = cqueues.sleep,
    run = function() assert.is_true(cq:loop()) end,
  })

  describe("two controllers of cqueues", function()
    it("each go on with their own coroutines", function()
      local pool = threadpool.new { workers = 1 }
      local one, two = cqueues.new(), cqueues.new()
      adapter.attach(one)
      adapter.attach(two)
      local got = {}
      one:wrap(function() got[1] = pool:spawn(function() return 1 end):await() end)
      two:wrap(function() got[2] = pool:spawn(function() return 2 end):await() end)
      for _ = 1, 1000 do
        one:step(0.005)
        two:step(0.005)
        if got[1] and got[2] then break end
      end
      assert.same({ 1, 2 }, got)
      adapter.detach(one)
      adapter.detach(two)
      pool:close()
    end)
  end)
else
  pending "in the loop of cqueues: lua-cqueues is not installed"
end

-- copas of Debian has no timers: a pair of its sockets makes one, by a thread of another loop that does not exist here;
-- so a byte is sent to itself when the time has come, and what is waited for is that byte.
local has_copas, copas = pcall(require, "copas")
if has_copas then
  local adapter, socket = require "threadpool.loop.copas", require "socket"
  local running, error_in = 0, nil
  local timers = {}
  shared("copas", {
    attach = adapter.attach,
    detach = adapter.detach,
    start = function(fn)
      running = running + 1
      copas.addthread(function()
        local ok, err = pcall(fn)
        running = running - 1
        if not ok then error_in = err end
      end)
    end,
    pause = function(seconds)
      local server = socket.udp()
      server:setsockname("127.0.0.1", 0)
      server:settimeout(0)
      local client = socket.udp()
      client:setpeername("127.0.0.1", select(2, server:getsockname()))
      timers[#timers + 1] = { at = socket.gettime() + seconds, client = client }
      copas.receivefrom(server)
      server:close()
      client:close()
    end,
    run = function()
      local sched = require "threadpool.sched"
      while running > 0 or sched.busy() do
        local now, next_at = socket.gettime(), nil
        for i = #timers, 1, -1 do
          if timers[i].at <= now then
            timers[i].client:send "x"
            table.remove(timers, i)
          elseif not next_at or timers[i].at < next_at then
            next_at = timers[i].at
          end
        end
        copas.step(next_at and math.max(next_at - now, 0) or 1)
      end
      if error_in then error(error_in, 0) end
    end,
  })
else
  pending "in the loop of copas: lua-copas is not installed"
end
