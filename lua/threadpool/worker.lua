---What a worker's Lua state runs: a loop that takes a call, does it, and gives its result (csrc/lua/call.c).

local core = require "threadpool.core"
local sched = require "threadpool.sched"

local decode, encode, current = core.decode, core.encode, core.current
local FINISHED = core.FINISHED
local yield = coroutine.yield

local function finish(...)
  local call = current()
  local root = sched.started[call]
  if root then
    sched.wait(sched.all_ended, root, {})
    sched.forget(call)
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

return { body = body, pump = sched.drain, forget = sched.forget }
