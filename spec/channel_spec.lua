local core = require "threadpool.core"
local threadpool = require "threadpool"

local pool

before_each(function() pool = assert(threadpool.new { workers = 2 }) end)
after_each(function() pool:close { drain = 1 } end)

-- Generous: only against hangs.
local LONG = 20

local function closed(value, err)
  assert.is_nil(value)
  assert.equal("ERR_CLOSED", err.name)
end

local function timed_out(value, err)
  assert.is_nil(value)
  assert.equal("ERR_TIMEOUT", err.name)
end

local function raised(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "it should have raised an error")
  return err
end

-- On a worker: values first to last, each once.
local function produce(ch, first, last)
  for i = first, last do assert(ch:send(i)) end
end

-- On a worker: what it has received until the channel was closed.
local function consume(ch)
  local got = {}
  for value in ch:values() do got[#got + 1] = value end
  return got
end

describe("a channel", function()
  describe("by itself", function()
    it("gives values back in the order in which they were sent", function()
      local ch = threadpool.channel(3)
      assert.is_true(ch:send(1))
      assert.is_true(ch:send "two")
      assert.is_true(ch:send { 3, nested = { true } })
      assert.equal(1, ch:receive())
      assert.equal("two", ch:receive())
      assert.same({ 3, nested = { true } }, (ch:receive()))
    end)

    it("tells how many it has, how many it holds, and whether it is closed", function()
      local ch = threadpool.channel(3)
      ch:send(1)
      ch:send(2)
      assert.equal(2, ch:count())
      assert.equal(2, #ch)
      assert.equal(3, ch:limit())
      assert.is_false(ch:is_closed())
      assert.equal("threadpool.Channel (2 of 3)", tostring(ch))
      assert.is_true(ch:close())
      assert.is_false(ch:close())
      assert.is_true(ch:is_closed())
      assert.equal("threadpool.Channel (2 of 3, closed)", tostring(ch))
    end)

    it("takes false, functions with upvalues, shared objects, strings with zeros", function()
      local ch, n = threadpool.channel(1), 41
      local shared = {}
      for _, value in ipairs { function() return n + 1 end, { shared, shared }, "a\0b" } do
        ch:send(value)
        local got = ch:receive()
        if type(value) == "function" then
          assert.equal(42, got())
        elseif type(value) == "table" then
          assert.equal(got[1], got[2])
        else
          assert.equal(value, got)
        end
      end
      ch:send(false)
      assert.is_false(ch:receive())
    end)

    it("refuses nil, and what cannot be sent, and is as it was", function()
      local ch = threadpool.channel(1)
      assert.matches("send: a value expected, got nil", raised(ch.send, ch, nil))
      assert.matches("try_send: a value expected, got nil", raised(ch.try_send, ch, nil))
      assert.matches("value 1: a coroutine cannot be sent", raised(ch.send, ch, coroutine.create(print)))
      assert.equal(0, ch:count())
      assert.is_true(ch:try_send(1))
    end)

    it("refuses sizes that are none", function()
      for _, n in ipairs { 0, -1, 1.5, 0 / 0, math.huge, "1", {} } do
        local err = raised(threadpool.channel, n)
        assert.matches("channel: expected how many values it holds, a whole number from 1 on", err)
        assert.matches("channel_spec.lua:", raised(function() threadpool.channel(n) end))
      end
      raised(threadpool.channel)
    end)

    it("refuses seconds that are none, and methods on what is no channel", function()
      local ch = threadpool.channel(1)
      assert.matches("receive: seconds expected", raised(ch.receive, ch, "soon"))
      assert.matches("send: seconds expected", raised(ch.send, ch, 1, {}))
      assert.matches("a channel expected", raised(ch.count, {}))
      assert.matches("a channel expected", raised(ch.close, io.stdout))
    end)

    it("does not wait if told so", function()
      local ch = threadpool.channel(1)
      timed_out(ch:try_receive())
      timed_out(ch:receive(0))
      assert.is_true(ch:try_send(1))
      timed_out(ch:try_send(2))
      timed_out(ch:send(2, 0))
      assert.equal(1, ch:try_receive())
      timed_out(ch:try_receive())
    end)

    it("has timeouts, and what was not sent in time is never seen", function()
      local ch = threadpool.channel(1)
      timed_out(ch:receive(0.01))
      ch:send(1)
      timed_out(ch:send(2, 0.01))
      assert.equal(1, ch:receive())
      timed_out(ch:receive(0.01))
    end)

    it("can be emptied after it was closed, and then says so", function()
      local ch = threadpool.channel(2)
      ch:send(1)
      ch:send(2)
      ch:close()
      closed(ch:send(3))
      closed(ch:try_send(3))
      assert.equal(1, ch:receive())
      assert.equal(2, ch:try_receive())
      closed(ch:receive())
      closed(ch:try_receive())
      closed(ch:receive(0.01))
    end)

    it("keeps a function whose upvalue is another channel, and that one's values", function()
      local outer, inner = threadpool.channel(1), threadpool.channel(1)
      inner:send "kept"
      outer:send(function() return inner:receive() end)
      inner = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      assert.equal("kept", outer:receive()())
    end)

    it("is one object in a state, whatever way it has come", function()
      local a, b = threadpool.channel(1), threadpool.channel(1)
      a:send { b, b }
      local got = a:receive()
      assert.is_true(rawequal(b, got[1]) and rawequal(b, got[2]))
      assert.is_true(rawequal(a, pool:spawn(function(ch) return ch end, a):await()))
    end)

    it("takes what finalizers send while another value is written", function()
      local ch, finalized = threadpool.channel(1e6), 0
      local value = {}
      for i = 1, 20 do value[i] = { { { i } } } end
      repeat
        for _ = 1, 50 do
          getmetatable(newproxy(true)).__gc = function()
            finalized = finalized + 1
            ch:send({ "finalized", { 2 } })
          end
        end
        for _ = 1, 20 do ch:send(value) end
        while ch:count() > 0 do
          local got = ch:receive()
          if got[1] ~= "finalized" then assert.same(value, got) else assert.same({ "finalized", { 2 } }, got) end
        end
      until finalized > 5000
      ch:close()
    end)

    it("can hold itself", function()
      local ch = threadpool.channel(2)
      ch:send(ch)
      assert.is_true(rawequal(ch, (ch:receive())))
      ch:send(ch) -- and goes with it
    end)
  end)

  describe("in coroutines", function()
    it("lets others go on while one waits", function()
      local ch, log = threadpool.channel(1), {}
      threadpool.run(function()
        threadpool.go(function()
          for value in ch:values() do log[#log + 1] = value end
          log[#log + 1] = "end"
        end)
        for i = 1, 5 do ch:send(i) end
        ch:close()
      end)
      assert.same({ 1, 2, 3, 4, 5, "end" }, log)
    end)

    it("serves receivers in the order in which they came", function()
      local ch, log = threadpool.channel(1), {}
      threadpool.run(function()
        for i = 1, 3 do threadpool.go(function() log[i] = ch:receive() end) end
        threadpool.sleep(0.01)
        for i = 1, 3 do ch:send(i * 10) end
      end)
      assert.same({ 10, 20, 30 }, log)
    end)

    it("serves senders in the order in which they came", function()
      local ch, got = threadpool.channel(1), {}
      threadpool.run(function()
        for i = 1, 4 do threadpool.go(function() ch:send(i) end) end
        threadpool.sleep(0.01)
        for i = 1, 4 do got[i] = ch:receive() end
      end)
      assert.same({ 1, 2, 3, 4 }, got)
    end)

    it("wakes all that wait when it is closed", function()
      local full, empty, outcomes = threadpool.channel(1), threadpool.channel(1), {}
      full:send(0)
      threadpool.run(function()
        for i = 1, 3 do
          threadpool.go(function() outcomes[i] = select(2, empty:receive()).name end)
          threadpool.go(function() outcomes[3 + i] = select(2, full:send(i)).name end)
        end
        threadpool.sleep(0.01)
        full:close()
        empty:close()
      end)
      assert.same({ "ERR_CLOSED", "ERR_CLOSED", "ERR_CLOSED", "ERR_CLOSED", "ERR_CLOSED", "ERR_CLOSED" }, outcomes)
      assert.equal(0, full:receive())
      closed(full:receive())
    end)

    it("gives what a receiver without time had been meant for to the next one", function()
      local ch = threadpool.channel(1)
      threadpool.run(function()
        threadpool.go(function() timed_out(ch:receive(0.01)) end)
        threadpool.sleep(0.05)
        ch:send "kept"
      end)
      assert.equal("kept", ch:try_receive())
    end)
  end)

  describe("as a task", function()
    it("takes nothing before something waits for it", function()
      local ch = threadpool.channel(1)
      local task = ch:receive_task()
      assert.is_true(ch:send(1))
      assert.equal(1, ch:count())
      assert.equal("waiting", task:status())
      assert.equal(1, task:await())
      assert.equal("done", task:status())
      assert.equal(1, task:await())
    end)

    it("is polled", function()
      local ch = threadpool.channel(1)
      local task, other = ch:receive_task(), ch:send_task(5)
      assert.is_false(task:poll())
      assert.is_true(other:poll())
      assert.is_true(task:poll())
      assert.equal(5, task:await())
    end)

    it("that was not the first has taken nothing", function()
      local a, b = threadpool.channel(1), threadpool.channel(1)
      a:send "a"
      b:send "b"
      local task, i = threadpool.first { a:receive_task(), b:receive_task() }
      assert.equal(1, i)
      assert.equal("a", task:await())
      assert.equal("b", b:try_receive())
    end)

    it("that was told at the same time as the first gives its value back", function()
      local a, b = threadpool.channel(1), threadpool.channel(1)
      local got = {}
      threadpool.run(function()
        threadpool.go(function()
          for _ = 1, 2 do got[#got + 1] = (threadpool.first { a:receive_task(), b:receive_task() }):await() end
        end)
        threadpool.sleep(0.01)
        a:send "a"
        b:send "b" -- before the other coroutine has the turn
      end)
      table.sort(got)
      assert.same({ "a", "b" }, got)
    end)

    it("that is cancelled takes nothing, and ends", function()
      local ch = threadpool.channel(1)
      local task, name = ch:receive_task(), nil
      threadpool.run(function()
        threadpool.go(function() name = select(2, task:await()).name end)
        threadpool.sleep(0.01)
        assert.is_true(task:cancel())
        assert.is_false(task:cancel())
        ch:send "kept"
      end)
      assert.equal("ERR_CANCELLED", name)
      assert.equal("kept", ch:try_receive())
    end)

    it("that is cancelled after it was told, and has not looked, passes its value on", function()
      local ch = threadpool.channel(1)
      local task, got = ch:receive_task(), nil
      threadpool.run(function()
        threadpool.go(function() task:await() end)
        threadpool.go(function() got = ch:receive() end)
        threadpool.sleep(0.01)
        ch:send "kept" -- is the task's now
        assert.equal(0, ch:count())
        core.channel_leave(task._wait, false) -- as by the end of who waits
        task._wait = nil
        task:cancel()
      end)
      assert.equal("kept", got)
    end)

    it("calls back", function()
      local ch, seen = threadpool.channel(1), {}
      ch:receive_task():on { on_result = function(value) seen[#seen + 1] = value end }
      ch:receive_task():on { on_error = function(err) seen[#seen + 1] = err.name end }
      pool:spawn(function(c) c:send(1) c:close() end, ch):await()
      threadpool.run(function() while #seen < 2 do threadpool.sleep(0.001) end end)
      assert.same({ 1, "ERR_CLOSED" }, seen)
    end)
  end)

  describe("with workers", function()
    it("plays ping-pong 10,000 times", function()
      local ping, pong = threadpool.channel(1), threadpool.channel(1)
      local player = pool:spawn(function(from, to)
        local n = 0
        for value in from:values() do
          n = n + 1
          to:send(value + 1)
        end
        return n
      end, ping, pong)
      for i = 1, 10000 do
        ping:send(i)
        if pong:receive(LONG) ~= i + 1 then error("round " .. i) end
      end
      ping:close()
      assert.equal(10000, player:await(LONG))
    end)

    it("plays ping-pong between workers, and on one worker", function()
      for workers = 1, 2 do
        local p = assert(threadpool.new { workers = workers })
        local ping, pong = threadpool.channel(1), threadpool.channel(1)
        local player = p:spawn(function(from, to)
          for value in from:values() do to:send(value + 1) end
          return "closed"
        end, ping, pong)
        local server = p:spawn(function(to, from)
          local sum = 0
          for i = 1, 5000 do
            to:send(i)
            sum = sum + from:receive()
          end
          to:close()
          return sum
        end, ping, pong)
        assert.equal(5000 * 5001 / 2 + 5000, server:await(LONG))
        assert.equal("closed", player:await(LONG))
        p:close()
      end
    end)

    it("brings what a worker that never gives way has sent", function()
      local one = assert(threadpool.new { workers = 1 })
      local ch, stop = threadpool.channel(4), threadpool.channel(1)
      local task = one:spawn(function(to, ends)
        to:send "begun"
        while not ends:is_closed() do end
        return "ended"
      end, ch, stop)
      assert.equal("begun", ch:receive(LONG))
      stop:close()
      assert.equal("ended", task:await(LONG))
      one:close()
    end)

    it("delivers each value once, in order for each sender", function()
      local ch, results = threadpool.channel(7), threadpool.channel(100)
      local producers, consumers = {}, {}
      for i = 1, 4 do
        consumers[i] = pool:spawn(consume, ch)
        producers[i] = pool:spawn(produce, ch, i * 10000 + 1, i * 10000 + 2000)
      end
      assert(threadpool.all(producers, { timeout = LONG }))
      ch:close()
      local seen, count = {}, 0
      for i, got in ipairs(assert(threadpool.all(consumers, { timeout = LONG }))) do
        local last = {}
        for _, value in ipairs(got) do
          assert.is_nil(seen[value], "twice: " .. value)
          seen[value] = i
          count = count + 1
          local sender = math.floor((value - 1) / 10000)
          assert.is_true(value > (last[sender] or 0), "out of order")
          last[sender] = value
        end
      end
      assert.equal(8000, count)
      assert.equal(0, results:count())
    end)

    it("has many coroutines on many sides", function()
      local ch, back = threadpool.channel(3), threadpool.channel(3)
      local worker = pool:spawn(function(from, to)
        local tp = require "threadpool"
        for _ = 1, 50 do tp.go(function() for v in from:values() do to:send(v * 2) end end) end
      end, ch, back)
      local sum = 0
      threadpool.run(function()
        for i = 1, 20 do
          threadpool.go(function() for k = 1, 50 do ch:send(i * 50 - 50 + k) end end)
        end
        for _ = 1, 1000 do sum = sum + back:receive(LONG) end
        ch:close()
      end)
      assert.equal(1000 * 1001, sum)
      worker:await(LONG)
    end)

    it("goes through channels, results, partial results, and errors", function()
      local ch = threadpool.channel(1)
      local made = pool:spawn(function(to)
        local tp = require "threadpool"
        local inner = tp.channel(1)
        inner:send "through a channel"
        to:send(inner)
        inner = tp.channel(1)
        inner:send "through a result"
        return inner
      end, ch)
      assert.equal("through a channel", ch:receive(LONG):receive(LONG))
      assert.equal("through a result", made:await(LONG):receive(LONG))
      local parts = pool:spawn(function()
        local tp = require "threadpool"
        local inner = tp.channel(1)
        inner:send "through a partial result"
        tp.emit(inner)
      end)
      assert.equal("through a partial result", parts:next():receive(LONG))
      local failing = pool:spawn(function()
        local tp = require "threadpool"
        local inner = tp.channel(1)
        inner:send "through an error"
        error { channel = inner }
      end)
      local _, err = failing:await(LONG)
      assert.equal("through an error", err.value.channel:receive(LONG))
    end)

    it("wakes workers when it is closed", function()
      local ch = threadpool.channel(1)
      local tasks = {}
      for i = 1, 20 do
        tasks[i] = pool:spawn(function(c)
          local value, err = c:receive()
          return value == nil and err.name
        end, ch)
      end
      threadpool.sleep(0.02)
      ch:close()
      for i = 1, 20 do assert.equal("ERR_CLOSED", tasks[i]:await(LONG)) end
    end)

    it("has timeouts on workers, and in their coroutines", function()
      local ch = threadpool.channel(1)
      assert.same({ "ERR_TIMEOUT", "ERR_TIMEOUT" }, (pool:spawn(function(c)
        local tp = require "threadpool"
        local names = {}
        names[1] = select(2, c:receive(0.01)).name
        tp.run(function() names[2] = select(2, c:receive(0.01)).name end)
        return names
      end, ch):await(LONG)))
      ch:send "kept"
      assert.equal("kept", ch:try_receive())
    end)

    it("loses nothing when tasks that wait are cancelled", function()
      local ch, got = threadpool.channel(4), threadpool.channel(1000)
      -- Between receive and send a task does not wait, so it is not ended there.
      local function forward(from, to)
        for value in from:values() do to:try_send(value) end
      end
      local function spawn() return pool:spawn(forward, ch, got) end
      local tasks, cancelled = { spawn(), spawn(), spawn() }, {}
      for i = 1, 500 do
        assert(ch:send(i, LONG))
        local k = i % 3 + 1
        tasks[k]:cancel()
        cancelled[i] = tasks[k]
        tasks[k] = spawn()
      end
      -- Only when a task has ended is what it had got where it belongs.
      for i = 1, 500 do assert.is_true(cancelled[i]:wait(LONG)) end
      ch:close()
      for k = 1, 3 do tasks[k]:await(LONG) end
      local seen = {}
      for value in ch:values() do got:send(value) end
      got:close()
      for value in got:values() do
        assert.is_nil(seen[value])
        seen[value] = true
      end
      local lost = 0
      for i = 1, 500 do if not seen[i] then lost = lost + 1 end end
      assert.equal(0, lost)
    end)

    it("goes to another receiver when the pool of the first is closed", function()
      local other = assert(threadpool.new { workers = 1 })
      local ch = threadpool.channel(1)
      other:spawn(function(c) c:receive() end, ch):on { on_error = function() end }
      threadpool.sleep(0.02)
      other:close { drain = 0 }
      ch:send "kept"
      assert.equal("kept", ch:receive(LONG))
    end)

    it("connects two pools", function()
      local other = assert(threadpool.new { workers = 1 })
      local ch = threadpool.channel(2)
      local out = threadpool.channel(1)
      other:spawn(function(c, to)
        local n = 0
        for f in c:values() do n = n + f() end
        to:send(n)
      end, ch, out)
      pool:spawn(function(c)
        for i = 1, 100 do c:send(function() return i end) end
        c:close()
      end, ch):await(LONG)
      assert.equal(5050, out:receive(LONG))
      other:close()
    end)

    it("is not in the way of a pool that is closed", function()
      local p = assert(threadpool.new { workers = 2 })
      local full, empty = threadpool.channel(1), threadpool.channel(1)
      full:send(0)
      local names = {}
      for i = 1, 10 do
        local function note(err) names[#names + 1] = err.name end
        p:spawn(function(c) c:receive() end, empty):on { on_error = note }
        p:spawn(function(c, k) c:send(k) end, full, i):on { on_error = note }
      end
      threadpool.sleep(0.02)
      p:close { drain = 0 }
      assert.equal(20, #names)
      assert.equal(1, full:count())
      empty:send "kept"
      assert.equal("kept", empty:try_receive())
    end)

    it("outlives requests that were not read, and no longer", function()
      local alive = core.channel_alive
      collectgarbage()
      collectgarbage()
      local before = alive()
      for _ = 1, 2000 do
        local ch = threadpool.channel(1)
        ch:send("x")
        local task = pool:spawn(function(c) return c end, ch)
        task:cancel()
        task:detach()
        if pool:stats().pending > 200 then pool:pump(0.001) end
      end
      pool:close { drain = 1 }
      pool = assert(threadpool.new { workers = 2 })
      collectgarbage()
      collectgarbage()
      assert.is_true(alive() - before <= 200, alive() - before .. " are left")
    end)

    it("is given back by a state that was lost while a task of it waited", function()
      local alive = core.channel_alive
      pool:close()
      pool = assert(threadpool.new { workers = 1 })
      collectgarbage()
      collectgarbage()
      local before = alive()
      for _ = 1, 20 do
        local task = pool:spawn(function(c) return c:receive() end, threadpool.channel(1))
        while task:status() ~= "waiting" do pool:pump(0.001) end
        pool:spawn(function() require "ffi".cast("int*", 8)[0] = 1 end):await(LONG)
        assert.equal("ERR_LUA", select(2, task:await(LONG)).name)
      end
      pool:close()
      pool = nil -- luacheck: ignore 311
      collectgarbage()
      collectgarbage()
      pool = assert(threadpool.new { workers = 1 })
      assert.is_true(alive() - before <= 2, alive() - before .. " are left")
    end)

    it("is there for an init function in each state", function()
      local ch = threadpool.channel(10)
      local p = assert(threadpool.new { workers = 2, init = function() ch:send "made" end })
      ch = nil -- luacheck: ignore 311
      collectgarbage()
      collectgarbage()
      assert.equal(5, p:spawn(function() return 5 end):await(LONG))
      p:close()
    end)

    it("of a parent is refused in its child, which has channels of its own", function()
      local ffi = require "ffi"
      ffi.cdef "int fork(void); int waitpid(int pid, int *status, int options); void _exit(int status);"
      local ch = threadpool.channel(1)
      local task = pool:spawn(function(c) return c:receive() end, ch)
      local child = ffi.C.fork()
      if child == 0 then
        local good = pcall(function()
          local _, err = ch:send(1)
          assert(err.name == "ERR_FORKED" and err.message:find("channel", 1, true))
          assert(select(2, ch:receive(1)).name == "ERR_FORKED" and not ch:close())
          local own = threadpool.channel(1)
          assert(own:send(1) and own:receive() == 1)
          ch = nil
          collectgarbage()
          collectgarbage()
        end)
        ffi.C._exit(good and 0 or 1)
      end
      local status = ffi.new "int[1]"
      ffi.C.waitpid(child, status, 0)
      assert.equal(0, status[0])
      ch:send "to the worker"
      ch:close()
      assert.equal("to the worker", task:await(LONG))
    end)

    it("is freed with the channels that are in it", function()
      local alive = core.channel_alive
      collectgarbage()
      collectgarbage()
      local before = alive()
      do
        local chain = threadpool.channel(1)
        for _ = 1, 20000 do -- deeper than a stack
          local next_one = threadpool.channel(1)
          next_one:send(chain)
          chain = next_one
        end
      end
      collectgarbage()
      collectgarbage()
      assert.is_true(alive() - before <= 2, alive() - before .. " are left")
    end)
  end)
end)
