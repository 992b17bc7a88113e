#!/usr/bin/env luajit
-- vector_plain.lua - the workload vector_topk as a plain loop of LuaJIT over FFI arrays.
--
--   vector_plain.lua <workload> <threads> <samples>    one number a line, as of ../harness.h
--   vector_plain.lua version
--
-- The matrix is that of ../harness_vector.c; it takes its own time, as the harness cannot call into Lua.
local ffi = require "ffi"

ffi.cdef [[
typedef struct { long sec, nsec; } bench_time;
int clock_gettime(int clock, bench_time *t);
]]

local ROWS, DIM, K = 10000, 768, 10
local BEST = 4418 -- the row that has to come out first, from 0
local MONOTONIC, NO_SUCH_WORKLOAD = 1, 77

local t = ffi.new "bench_time"
local function now_us()
  ffi.C.clock_gettime(MONOTONIC, t)
  return tonumber(t.sec) * 1e6 + tonumber(t.nsec) / 1e3
end

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

local workload, samples = arg[1], tonumber(arg[3])
if workload == "version" then
  print(jit.version .. ", a plain loop over FFI arrays")
  os.exit(0)
end
if workload ~= "vector_topk" or not samples then os.exit(NO_SUCH_WORKLOAD) end

local data, query = ffi.new("float[?]", ROWS * DIM), ffi.new("float[?]", DIM)
fill(data, ROWS * DIM)
fill(query, DIM)
local indices, scores = ffi.new("int64_t[?]", K), ffi.new("double[?]", K)
for _ = 1, 3 do
  topk(data, query, indices, scores)
end
local budget, begin = (tonumber(os.getenv "BENCH_BUDGET_MS") or 1000) * 1000, now_us()
for taken = 0, samples - 1 do
  if taken > 0 and now_us() - begin >= budget then break end
  local from = now_us()
  topk(data, query, indices, scores)
  local took = now_us() - from
  assert(indices[0] == BEST, "the best is row " .. tostring(indices[0]))
  print(("%.6g"):format(took))
end
