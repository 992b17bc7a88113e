#!/usr/bin/env luajit
---ours_lua.lua - the Lua module's part of the suite; called as harness.lua says, from the top of the tree.
local here = arg[0]:match "^(.*)/" or "."
local top = here .. "/../../"
package.path = ("%s/?.lua;%slua/?.lua;%slua/?/init.lua;%s"):format(here, top, top, package.path)
package.cpath = ("%sbuild/release/?.so;%s"):format(top, package.cpath)

local harness = require "harness"
local threadpool = require "threadpool"

local now, check = harness.now, harness.check
local TASKS, TRIPS, ITEMS, PARTS = 200000, 2000, 1000000, 500000

local M = { version = "the Lua module, " .. jit.version }
local pool

function M.start(threads)
  pool = assert(threadpool.new { workers = threads })
end

function M.stop()
  pool:close()
end

local function add(a, b) return a + b end

function M.lua_spawn(warm)
  local n = warm and TASKS / 10 or TASKS
  local begin = now()
  local tasks, sum = {}, 0
  for i = 1, n do tasks[i] = pool:spawn(add, i, 1) end
  for i = 1, n do sum = sum + tasks[i]:await() end
  local took = now() - begin
  check(sum, n * (n + 1) / 2 + n, "the sum")
  return took / n
end

function M.lua_roundtrip(warm)
  local n = warm and TRIPS / 10 or TRIPS
  local begin = now()
  local sum = 0
  for i = 1, n do sum = sum + pool:spawn(add, i, 1):await() end
  local took = now() - begin
  check(sum, n * (n + 1) / 2 + n, "the sum")
  return took / n / 1000
end

local numbers

function M.lua_map(warm)
  if not pool.map then return nil, "pool:map is not there yet" end
  if not numbers then
    numbers = {}
    for i = 1, ITEMS do numbers[i] = i * 0.5 end -- no whole range, which could travel as two numbers
  end
  local begin = now()
  local doubled = pool:map(numbers, function(x) return x * 2 end)
  local took = now() - begin
  if not warm then
    check(#doubled, ITEMS, "the number of results")
    for i = 1, ITEMS do check(doubled[i], i, "a result") end
  end
  return took / ITEMS
end

local function count_to(n)
  local emit = require "threadpool".emit
  for i = 1, n do emit(i) end
end

function M.lua_partials(warm)
  local n = warm and PARTS / 10 or PARTS
  local begin = now()
  local sum, expected = 0, 1
  for part in pool:stream(count_to, n) do
    check(part, expected, "a partial result")
    sum, expected = sum + part, expected + 1
  end
  local took = now() - begin
  check(sum, n * (n + 1) / 2, "the sum")
  return took / n
end

harness.main(M)
