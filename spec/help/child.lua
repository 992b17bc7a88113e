---Programs that run in a process of their own: how they end is what a spec wants to know.

local ffi = require "ffi"

local M = {}

-- A sanitizer's library is for LuaJIT (config/build/run-tests.sh); a shell does not start with ThreadSanitizer's.
ffi.cdef "int unsetenv(const char *name);"
local preload = os.getenv "LD_PRELOAD"
ffi.C.unsetenv "LD_PRELOAD"
local luajit = preload and ("env LD_PRELOAD='%s' luajit"):format(preload) or "luajit"

---How often a spec of processes runs its program: ends of processes are races.
M.often = preload and 3 or os.getenv "TP_SPEC_MODE" and 20 or os.getenv "TP_STRESS" and 200 or
    os.getenv "TP_QUICK" and 5 or 20

local function read_all(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

---@class spec.Ended
---@field code integer  as a shell says it: 128 and the signal if one killed it, 124 or 137 after 10 seconds
---@field out string
---@field err string

---Run a program with `luajit`, ten seconds at most.
---@param text string  the program
---@return spec.Ended
function M.run(text)
  local name = os.tmpname()
  local file = assert(io.open(name, "w"))
  file:write(text)
  file:close()
  local command = ("timeout --kill-after=2 10 %s %s >%s.out 2>%s.err </dev/null; echo $?")
      :format(luajit, name, name, name)
  local shell = assert(io.popen(command))
  local code = shell:read "*n"
  shell:close()
  local ended = { code = code, out = read_all(name .. ".out"), err = read_all(name .. ".err") }
  os.remove(name)
  os.remove(name .. ".out")
  os.remove(name .. ".err")
  return ended
end

---Run it M.often times; the first that ends otherwise is what fails.
---@param text string
---@param expected { code: integer, out?: string, err?: string }  out: all of it; err: a pattern, or "" for nothing
function M.always(text, expected)
  for i = 1, M.often do
    local ended = M.run(text)
    local good = ended.code == expected.code and (not expected.out or ended.out == expected.out)
    if expected.err == "" then
      good = good and ended.err == ""
    elseif expected.err then
      good = good and ended.err:find(expected.err) ~= nil
    end
    if not good then
      error(("run %d of %d ended with status %d, expected %d\nstdout: %s\nstderr: %s"):format(i, M.often, ended.code,
        expected.code, ended.out, ended.err), 2)
    end
  end
end

return M
