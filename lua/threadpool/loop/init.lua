---What the adapters for other event loops share: the descriptor that their loop polls, and a bell that makes it
---readable when this thread itself has something for pump to do.

local core = require "threadpool.core"
local sched = require "threadpool.sched"
local ffi = require "ffi"

-- By another name, so that it is no redeclaration of the program's own.
ffi.cdef [[
int threadpool_eventfd_write(int fd, uint64_t value) asm("eventfd_write");
int threadpool_eventfd_read(int fd, uint64_t *value) asm("eventfd_read");
]]

local M = {}

local rung = false
local value = ffi.new "uint64_t[1]"

---The descriptor; it is readable while pump has something to do.
---@return integer
function M.fd()
  local fd, _, message = core.fd()
  return fd or error(message, 0)
end

---Have the loop call pump soon.
function M.ring()
  if rung then return end
  rung = true
  ffi.C.threadpool_eventfd_write(M.fd(), 1)
end

---To be called when the descriptor is readable.
function M.pump()
  if rung then -- taken back before pump looks: what is pushed meanwhile makes it readable again
    rung = false
    ffi.C.threadpool_eventfd_read(M.fd(), value)
  end
  sched.pump()
end

---@param driver threadpool.Driver
function M.attach(driver)
  if sched.in_worker then error("threadpool.loop: a worker has no event loop of others", 3) end
  driver.soon = driver.soon or M.ring
  sched.add_driver(driver)
end

M.detach = sched.remove_driver

return M
