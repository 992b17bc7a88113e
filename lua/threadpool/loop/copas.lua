---Our waiting inside copas: `await`, `stream` and `sleep` yield in its threads, and callbacks are called, while
---copas.loop or copas.step goes on.
---
---  local copas = require "copas"
---  require "threadpool.loop.copas".attach()
---  copas.addthread(function() print(pool:spawn(f):await()) end)
---  copas.loop()
---
---copas 1 closes the socket of a handler when the handler ends (copas.autoclose), but only if it has waited for that
---socket last: a handler that awaits something at its end has to close it.

local loop = require "threadpool.loop"
local copas = require "copas"

local M = {}

local driver

-- copas 1 has no way to wait but for a socket: a coroutine yields a socket and the set of those to be selected. This
-- is neither, so nobody resumes it but us.
local nowhere = { insert = function() end, push = function() end }

local function suspend_1()
  coroutine.yield(nowhere, nowhere)
end

-- Later ones know threads that sleep until they are woken.
local function suspend_2()
  copas.sleep(-1)
end

---A second time does nothing.
function M.attach()
  if driver then return end
  local ours = setmetatable({}, { __mode = "k" }) -- threads that pump: they end with the loop's own waiting
  local busy, pumping, fresh = false, false, false
  local new = copas.wakeup ~= nil
  -- What copas takes for a socket. It is asked for data when the descriptor is readable; there never is any.
  local socket = {
    getfd = loop.fd,
    dirty = function() return false end,
    close = function() end,
    settimeout = function() return 1 end,
    receive = function()
      if not fresh then loop.pump() end -- at first nothing is readable, and `busy` must not pump
      fresh = false
      return nil, busy and "timeout" or "closed"
    end,
  }
  driver = {
    owns = function(co) return not ours[co] end,
    suspend = new and suspend_2 or suspend_1,
    wake = new and copas.wakeup or function(co) copas.addthread(co) end,
    busy = function(on)
      busy = on
      if on and not pumping then
        pumping, fresh = true, true
        copas.addthread(function()
          ours[coroutine.running()] = true
          copas.receive(socket, "*a")
          pumping = false
        end)
      elseif not on then
        loop.ring()
      end
    end,
  }
  loop.attach(driver)
end

---Leave it alone.
function M.detach()
  if not driver then return end
  driver.busy(false)
  loop.detach(driver)
  driver = nil
end

return M
