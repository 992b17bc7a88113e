#!/usr/bin/env luajit
---peer_luv.lua - luv's `new_work`: a Lua function on a thread of libuv's pool, and one in the loop with the result.
---
---In a round trip the function that gets the result submits the next, in one run of the loop. A run of its own for
---each, uv.run "once", is no faster.
package.path = ("%s/?.lua;%s"):format(arg[0]:match "^(.*)/" or ".", package.path)

local harness = require "harness"
local uv = require "luv"

local now, check = harness.now, harness.check
local TASKS, TRIPS = 200000, 2000

local M = { version = ("luv, libuv %s, %s"):format(uv.version_string(), jit.version) }

function M.start(threads)
  uv.os_setenv("UV_THREADPOOL_SIZE", tostring(threads)) -- read when the first function is queued
end

local function add(a, b) return a + b end

function M.lua_spawn(warm)
  local n = warm and TASKS / 10 or TASKS
  local begin = now()
  local sum = 0
  local work = uv.new_work(add, function(result) sum = sum + result end)
  for i = 1, n do work:queue(i, 1) end
  uv.run()
  local took = now() - begin
  check(sum, n * (n + 1) / 2 + n, "the sum")
  return took / n
end

function M.lua_roundtrip(warm)
  local n = warm and TRIPS / 10 or TRIPS
  local begin = now()
  local sum, i, work = 0, 1, nil
  work = uv.new_work(add, function(result)
    sum, i = sum + result, i + 1
    if i <= n then work:queue(i, 1) end
  end)
  work:queue(i, 1)
  uv.run()
  local took = now() - begin
  check(sum, n * (n + 1) / 2 + n, "the sum")
  return took / n / 1000
end

harness.main(M)
