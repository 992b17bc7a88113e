---Our waiting inside luv's loop: `await`, `stream` and `sleep` yield in any coroutine, and callbacks are called, while
---uv.run goes on; uv.run returns when nothing waits any more.
---
---  local uv = require "luv"
---  require "threadpool.loop.luv".attach()
---  coroutine.wrap(function() print(pool:spawn(f):await()) end)()
---  uv.run()

local loop = require "threadpool.loop"
local uv = require "luv"

local M = {}

local driver

---Use luv's default loop. A second time does nothing.
function M.attach()
  if driver then return end
  local poll
  driver = {
    owns = function() return false end, -- luv has no coroutines of its own: pump resumes those of the program
    suspend = coroutine.yield,
    wake = coroutine.resume,
    busy = function(on)
      if on then
        poll = poll or uv.new_poll(loop.fd())
        poll:start("r", loop.pump)
      elseif poll then
        poll:stop()
      end
    end,
  }
  loop.attach(driver)
end

---Leave the loop alone.
function M.detach()
  if not driver then return end
  driver.busy(false)
  loop.detach(driver)
  driver = nil
end

return M
