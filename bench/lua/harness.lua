---harness.lua - what harness.c is for the programs in Lua: takes the time, warms up, counts samples.
---
---  program <workload> <threads> <samples>    one number a line, in the workload's unit
---  program version                           one line
---
---Exit 0: measured. 77: there is no such workload here. Anything else: a wrong result or a wrong call.
local ffi = require "ffi"

ffi.cdef [[
typedef struct { long sec, nsec; } bench_time;
int clock_gettime(int clock, bench_time *t);
]]

local M = {}

local MONOTONIC, NO_SUCH_WORKLOAD = 1, 77
local t = ffi.new "bench_time"

---@return number nanoseconds
function M.now()
  ffi.C.clock_gettime(MONOTONIC, t)
  return tonumber(t.sec) * 1e9 + tonumber(t.nsec)
end

---A wrong result is no measurement.
function M.check(got, expected, what)
  if got ~= expected then error(("%s is %s, not %s"):format(what, tostring(got), tostring(expected)), 0) end
end

---@class bench.Program
---@field version string
---@field start? fun(threads: integer)
---@field stop? fun()
---@field [string] fun(warm: boolean): number?  a workload: one sample, in its unit; warm: one that is not used. nil and
---                                             the reason: it is not there

local function finish(program, status)
  if program.stop then program.stop() end
  os.exit(status, true)
end

---@param program bench.Program
function M.main(program)
  local workload, threads, samples = arg[1], tonumber(arg[2]), tonumber(arg[3])
  if workload == "version" then
    print(program.version)
    os.exit(0)
  end
  if not threads or not samples then
    io.stderr:write(("usage: %s <workload> <threads> <samples> | version\n"):format(arg[0]))
    os.exit(1)
  end
  local sample = workload ~= "start" and workload ~= "stop" and program[workload]
  if not sample then os.exit(NO_SUCH_WORKLOAD) end
  if program.start then program.start(threads) end
  local budget = (tonumber(os.getenv "BENCH_BUDGET_MS") or 1000) * 1e6
  local ok, err = pcall(function()
    local good, why = sample(true)
    if not good then
      io.stderr:write(("%s: %s: %s\n"):format(arg[0], workload, why))
      finish(program, NO_SUCH_WORKLOAD)
    end
    local begin = M.now()
    for taken = 1, samples do
      if taken > 1 and M.now() - begin >= budget then break end
      collectgarbage() -- what the last sample left is not this one's
      print(("%.6g"):format((sample(false))))
    end
  end)
  if not ok then
    io.stderr:write(("%s: %s: %s\n"):format(arg[0], workload, tostring(err)))
    finish(program, 1)
  end
  finish(program, 0)
end

return M
