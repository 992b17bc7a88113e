---What a worker's Lua state runs: a loop that takes a call, does it, and gives its result (csrc/lua/call.c).

local core = require "threadpool.core"
local sched = require "threadpool.sched"

local decode, encode, current = core.decode, core.encode, core.current
local FINISHED = core.FINISHED
local started = sched.started
local yield = coroutine.yield

local function finish(...)
  if next(started) then -- some call has waited or started something: this one?
    local call = current()
    local root = started[call]
    if root then
      sched.wait(sched.all_ended, root, {})
      sched.forget(call)
    end
  end
  return encode(...) -- a tail call: its errors need no line of ours
end

local function invoke(fn, ...)
  return fn(...)
end

local function body()
  sched.bodies[coroutine.running()] = true
  while true do
    finish(invoke(decode()))
    yield(FINISHED)
  end
end

-- What is compiled is told, so that a function that never ends can be stopped in it (csrc/lua/stop.h). One area of machine
-- code at a time, of a known size.
if jit and jit.status() then
  local ok, util = pcall(require, "jit.util")
  jit.opt.start("sizemcode=" .. core.MACHINE_CODE_KB, "maxmcode=" .. core.MACHINE_CODE_KB)
  if ok and util.tracemc then
    jit.attach(function(what, trace)
      if what ~= "stop" then return end
      local _, address = util.tracemc(trace)
      if address then core.machine_code(address) end
    end, "trace")
  end
end

return { body = body, pump = sched.drain, forget = sched.forget }
