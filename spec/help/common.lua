---What the specs share: `local help = dofile "spec/help/common.lua"`.
local ffi = require "ffi"
local assert = require "luassert"

local help = {}

ffi.cdef [[
struct threadpool_spec_pollfd { int fd; short events, revents; };
int threadpool_spec_poll(struct threadpool_spec_pollfd *fds, unsigned long n, int timeout) asm("poll");
]]

---Whether the descriptor is readable within so many seconds.
function help.readable(fd, seconds)
  local p = ffi.new("struct threadpool_spec_pollfd[1]", { { fd, 1, 0 } })
  return ffi.C.threadpool_spec_poll(p, 1, seconds * 1000) == 1
end

---What f raises.
function help.raised(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok, "it should have raised an error")
  return err
end

---The line that calls this.
function help.line()
  return debug.getinfo(2, "l").currentline
end

---What goes to the handler of errors while f runs.
function help.aside(f)
  local threadpool = require "threadpool"
  local seen = {}
  threadpool.on_error(function(err) seen[#seen + 1] = err end)
  local ok, err = pcall(f)
  threadpool.on_error(nil)
  if not ok then error(err, 0) end
  return seen
end

---Wait until f is true; false: it was not after 10 s.
function help.eventually(pool, f)
  local deadline = os.time() + 10
  while not f() do
    if os.time() > deadline then return false end
    pool:pump(0.01)
  end
  return true
end

return help
