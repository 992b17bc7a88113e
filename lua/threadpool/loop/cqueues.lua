---Our waiting inside a controller of cqueues: `await`, `stream` and `sleep` yield in its coroutines, and callbacks are
---called, while it is stepped; cq:loop() returns when nothing waits any more.
---
---  local cq = require "cqueues".new()
---  require "threadpool.loop.cqueues".attach(cq)
---  cq:wrap(function() print(pool:spawn(f):await()) end)
---  assert(cq:loop())

local loop = require "threadpool.loop"
local cqueues = require "cqueues"
local condition = require "cqueues.condition"

local M = {}

local attached = setmetatable({}, { __mode = "k" }) -- drivers, by controller
local conditions = setmetatable({}, { __mode = "k" })

---@param cq userdata  a controller
function M.attach(cq)
  if attached[cq] then return end
  local busy, pumping = false, false
  local readable = { pollfd = loop.fd(), events = "r" }
  local function pump_while_busy()
    while busy do
      cqueues.poll(readable)
      loop.pump()
    end
    pumping = false
  end
  local driver = {
    owns = function()
      local controller, direct = cqueues.running()
      return direct and controller == cq
    end,
    suspend = function(co)
      conditions[co] = conditions[co] or condition.new()
      conditions[co]:wait()
    end,
    wake = function(co) conditions[co]:signal() end,
    busy = function(on)
      busy = on
      if on and not pumping then
        pumping = true
        cq:wrap(pump_while_busy)
      elseif not on then
        loop.ring() -- it polls: it is to see that nothing waits
      end
    end,
  }
  attached[cq] = driver
  loop.attach(driver)
end

---@param cq userdata
function M.detach(cq)
  local driver = attached[cq]
  if not driver then return end
  driver.busy(false)
  loop.detach(driver)
  attached[cq] = nil
end

return M
