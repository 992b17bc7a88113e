#!/usr/bin/env luajit
---peer_luajit.lua - the same work as plain loops of LuaJIT, on one thread: vector_topk over FFI arrays, lua_map.
package.path = ("%s/?.lua;%s"):format(arg[0]:match "^(.*)/" or ".", package.path)

local ffi = require "ffi"
local harness = require "harness"

local now, check = harness.now, harness.check
local ROWS, DIM, K = 10000, 768, 10 -- the matrix is that of ../harness_vector.c
local BEST = 4418                   -- the row that has to come out first, from 0
local ITEMS = 1000000

local M = { version = jit.version .. ", plain loops" }

local seed = 1
local function fill(a, n)
  for i = 0, n - 1 do
    seed = (seed * 1664525 + 1013904223) % 4294967296
    a[i] = seed / 2147483648 - 1
  end
end

local function topk(data, query, indices, scores)
  local of_query = 0
  for j = 0, DIM - 1 do
    of_query = of_query + query[j] * query[j]
  end
  local found = 0
  for i = 0, ROWS - 1 do
    local row, dot, square = data + i * DIM, 0, 0
    for j = 0, DIM - 1 do
      local x = row[j]
      dot = dot + x * query[j]
      square = square + x * x
    end
    local score = dot / math.sqrt(square * of_query)
    if found < K or score > scores[K - 1] then
      local at = found < K and found or K - 1
      found = math.min(found + 1, K)
      while at > 0 and scores[at - 1] < score do
        scores[at], indices[at] = scores[at - 1], indices[at - 1]
        at = at - 1
      end
      scores[at], indices[at] = score, i
    end
  end
end

local data, query
local indices, scores = ffi.new("int64_t[?]", K), ffi.new("double[?]", K)

function M.vector_topk(warm)
  if not data then
    data, query = ffi.new("float[?]", ROWS * DIM), ffi.new("float[?]", DIM)
    fill(data, ROWS * DIM)
    fill(query, DIM)
  end
  for _ = 1, warm and 2 or 0 do topk(data, query, indices, scores) end
  local begin = now()
  topk(data, query, indices, scores)
  local took = now() - begin
  check(tonumber(indices[0]), BEST, "the best row")
  return took / 1000
end

local numbers

function M.lua_map(warm)
  if not numbers then
    numbers = {}
    for i = 1, ITEMS do numbers[i] = i * 0.5 end
  end
  local double = function(x) return x * 2 end
  local begin = now()
  local doubled = {}
  for i = 1, #numbers do doubled[i] = double(numbers[i]) end
  local took = now() - begin
  if not warm then
    check(#doubled, ITEMS, "the number of results")
    for i = 1, ITEMS do check(doubled[i], i, "a result") end
  end
  return took / ITEMS
end

harness.main(M)
