---`pool:map`, `pool:each`, `pool:reduce`: a function for each item of a list, on workers. Items go there in chunks,
---whose size follows the time that items take, so that what a task costs is shared by many.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local chunks = require "threadpool.chunks"
local ffi = require "ffi"

local new_table = require "table.new"
local type, xpcall, pairs, tostring = type, xpcall, pairs, tostring
local floor, max, min = math.floor, math.max, math.min
local now = core.now

local M = {}

local AIM = 0.001 -- seconds that a chunk is to take
local MOST = 8192 -- items of a chunk: more would save nothing, and what is on its way would leave the caches

-- --- numbers
--
-- A list of nothing but numbers, or such results, travel as one string: its bytes are those of an array of double. That
-- takes a tenth of the time that a table takes, as both sides are compiled.

local doubles_t, double_p = ffi.typeof "double[?]", ffi.typeof "const double *"
local buffer, room = nil, 0

---list[first..first + n - 1]; nil if not all are numbers.
local function pack_numbers(list, first, n)
  if n < 8 or type(list[first]) ~= "number" then return nil end
  if n > room then
    room = max(n, MOST)
    buffer = doubles_t(room)
  end
  local to = buffer
  for i = 0, n - 1 do
    local value = list[first + i]
    if type(value) ~= "number" then return nil end
    to[i] = value
  end
  local packed = ffi.string(to, n * 8)
  if room > MOST then buffer, room = nil, 0 end
  return packed
end

local function unpack_numbers(packed, to, first, n)
  local from = ffi.cast(double_p, packed)
  for i = 0, n - 1 do to[first + i] = from[i] end
  return to
end

-- --- the worker's side

local ERR_LUA = core.ERR_LUA

---An error of fn as one that can travel, where it happened.
local function failure(err)
  local traceback = debug.traceback("", 2):sub(2)
  if Error.is(err) then
    err.traceback = err.traceback or traceback
    return err
  end
  if type(err) == "string" then return Error.new(ERR_LUA, err, { traceback = traceback }) end
  return Error.new(ERR_LUA, tostring(err), { traceback = traceback, value = err })
end

local plain = { ["nil"] = true, boolean = true, number = true, string = true }

---What cannot be sent is an error of its item, and not of the chunk.
local function check_results(results, errors)
  if pcall(core.encode, results) then return errors end
  errors = errors or {}
  for i, value in pairs(results) do
    local ok, why = pcall(core.encode, value)
    if not ok then
      results[i] = nil
      errors[i] = Error.new(ERR_LUA, (tostring(why):gsub("^.-result 1: ", "its result: ")))
    end
  end
  return errors
end

local function check_errors(errors)
  for i, err in pairs(errors) do
    if not Error.is(err) then -- raised while it was dealt with: out of stack, or of memory
      errors[i] = Error.new(ERR_LUA, tostring(err))
    elseif err.value ~= nil and not pcall(core.encode, err.value) then
      err.value = nil
    end
  end
end

-- A function with upvalues is new each time that it comes, and nothing of it is compiled then. The chunks of one call
-- of map share the first.
local functions, keys, next_key = {}, {}, 0
local KEEP = 8

local function the_same(key, fn)
  if not key then return fn end
  local known = functions[key]
  if known then return known end
  next_key = next_key % KEEP + 1
  if keys[next_key] then functions[keys[next_key]] = nil end
  keys[next_key] = key
  functions[key] = fn
  return fn
end

---Items as they are sent: a table, packed numbers, or the first one where they are whole numbers.
local function open(items, n)
  if type(items) == "string" then return unpack_numbers(items, new_table(n, 0), 1, n) end
  if type(items) == "table" then return items end
  local all = new_table(n, 0)
  for i = 1, n do all[i] = items + i - 1 end
  return all
end

---items: see above.
---@return number seconds
---@return table|string|nil results
---@return table? errors
function M._map(discard, key, fn, first, n, items)
  fn = the_same(key, fn)
  local began = now()
  local results, errors, checked = not discard and new_table(n, 0) or nil, nil, true
  items = open(items, n)
  for i = 1, n do
    local ok, value = xpcall(fn, failure, items[i], first + i - 1)
    if not ok then
      errors = errors or {}
      errors[i] = value
    elseif results then
      results[i] = value
      checked = checked and plain[type(value)]
    end
  end
  local seconds = now() - began
  if not checked then errors = check_results(results, errors) end
  if results and not errors then results = pack_numbers(results, 1, n) or results end
  if errors then check_errors(errors) end
  return seconds, results, errors
end

function M._fold(key, fn, n, items)
  fn = the_same(key, fn)
  local began = now()
  items = open(items, n)
  local acc = items[1]
  for i = 2, n do acc = fn(acc, items[i]) end
  return now() - began, acc
end

-- What is sent: it has no upvalues, so a worker loads it once.
local function on_worker(name, ...)
  return require("threadpool.map")[name](...)
end

-- --- lists

local function slice_of(list, first, n)
  local packed = pack_numbers(list, first, n)
  if packed then return packed end
  local items = new_table(n, 0)
  for i = 1, n do items[i] = list[first + i - 1] end
  return items
end

local function pull(iterator, n)
  local items = {}
  for i = 1, n do
    local item = iterator()
    if item == nil then return items, i - 1, true end
    items[i] = item
  end
  return items, n, false
end

---@return fun(n: integer): any, integer  the next n items or less, and how many; 0: there are no more
---@return integer? total
local function source_of(what, list, n, level)
  local kind = type(list)
  if n ~= nil then chunks.check_count(what, "n", n, 0, level + 1) end
  if kind == "function" then
    local over = n == 0
    local left = n or math.huge
    return function(most)
      if over then return nil, 0 end
      local items, count
      items, count, over = pull(list, min(most, left))
      left = left - count
      over = over or left == 0
      return items, count
    end, nil
  end
  local at, first_item = 0, nil
  if kind == "number" then
    chunks.check_count(what, "the number of items", list, 0, level + 1)
    n, first_item = list, 1
  elseif kind == "table" and list.first ~= nil and list.last ~= nil and list[1] == nil then
    for _, name in ipairs { "first", "last" } do
      chunks.check_count(what, name, list[name], -2 ^ 53, level + 1)
    end
    n, first_item = max(0, list.last - list.first + 1), list.first
  elseif kind == "table" then
    n = n or #list
  elseif kind ~= "cdata" then
    error(("%s: a list expected: a table, a number, an iterator function or an array of the FFI; got %s")
      :format(what, list == nil and "nil" or "a " .. kind), level + 1)
  elseif n == nil then
    error(what .. ": option n is nil: an array of the FFI does not say how many items it has", level + 1)
  end
  local offset = kind == "cdata" and 0 or 1
  return function(most)
    local count = min(most, n - at)
    if count <= 0 then return nil, 0 end
    at = at + count
    if first_item then return first_item + at - count, count end
    return slice_of(list, offset + at - count, count), count
  end, n
end

-- --- how large a chunk is

---Follows what the last ones took, carefully at first.
local function sizes(job, options, total)
  local fixed = options.chunk
  if fixed == nil and options.timeout then fixed = 1 end -- so that it is that of an item
  if fixed then
    return function() return fixed end, function() end
  end
  local per_item, last, sent = nil, 0.125, 0
  local limit = job.limit
  return function()
    local by_time = per_item and AIM / per_item or 1
    local size = min(by_time, last * 8, MOST)
    if total then -- the last ones are small, so that workers end together; but not so small that they cost more
      size = min(size, max((total - sent) / (2 * limit), by_time / 20))
    end
    size = max(1, floor(size))
    sent = sent + size
    return size
  end, function(n, seconds)
    local took = max(seconds, 1e-7) / n
    per_item = per_item and (per_item + took) / 2 or took
    if n > last then last = n end
  end
end

-- --- the calls

local state = tostring({}):match "0x%x+" .. "@" .. now() .. ":" -- of no other Lua state of the process
local calls = 0

---What its chunks know fn by.
local function key_of(fn)
  if not debug.getupvalue(fn, 1) then return nil end
  calls = calls + 1
  return state .. calls
end

local names = { "limit", "chunk", "retry", "backoff", "on_progress", "timeout", "priority", "n" }

local function check(what, fn, options, level)
  if type(fn) ~= "function" then error(what .. ": a function expected, got " .. type(fn), level + 1) end
  if options == nil then return {} end
  if type(options) ~= "table" then
    error(what .. ": a table of options expected, got " .. type(options), level + 1)
  end
  for name in pairs(options) do chunks.check_name(what, name, names, level + 1) end
  if options.chunk ~= nil then chunks.check_count(what, "chunk", options.chunk, 1, level + 1) end
  if options.retry ~= nil then chunks.check_count(what, "retry", options.retry, 0, level + 1) end
  local backoff = options.backoff
  if backoff ~= nil and (type(backoff) ~= "number" or backoff ~= backoff or backoff < 0) then
    error(what .. ": backoff: seconds expected, 0 or more", level + 1)
  end
  if options.on_progress ~= nil and type(options.on_progress) ~= "function" then
    error(what .. ": on_progress: a function expected, got " .. type(options.on_progress), level + 1)
  end
  return options
end

---Items that have failed and are to be tried again, the next one first.
local function retries(options)
  local waiting, first, last = {}, 1, 0
  local backoff = options.backoff or 0.1
  return {
    add = function(index, item, tries)
      local due = now() + backoff * 2 ^ tries * (0.75 + math.random() / 2)
      local at = last + 1
      while at > first and waiting[at - 1].due > due do
        waiting[at] = waiting[at - 1]
        at = at - 1
      end
      waiting[at] = { first = index, n = 1, items = { item }, due = due, tries = tries + 1 }
      last = last + 1
    end,
    take = function()
      local piece = waiting[first]
      if not piece or piece.due > now() then return nil end
      waiting[first] = nil
      first = first + 1
      return piece
    end,
    due = function()
      return waiting[first] and max(0, waiting[first].due - now())
    end,
  }
end

---map, and each if `discard`.
local function run(what, pool, list, fn, options, discard)
  options = check(what, fn, options, 3)
  local take, total = source_of(what, list, options.n, 3)
  local job = chunks.new(what, pool, options, 3)
  local size, measure = sizes(job, options, total)
  local again = retries(options)
  local retry, on_progress = options.retry or 0, options.on_progress
  local key = key_of(fn)
  local values, errors = not discard and new_table(total or 0, 0) or nil, nil
  local sent, done = 0, 0

  function job.next()
    local piece = again.take()
    if piece then return piece end
    local items, n = take(size())
    if n == 0 then return nil end
    sent = sent + n
    return { first = sent - n + 1, n = n, items = items, tries = 0 }
  end

  function job.spawn(piece)
    return job:send(core.spawn(pool._core, job.options, on_worker, "_map", discard, key, fn, piece.first, piece.n,
      piece.items))
  end

  -- err: of one item. Returns whether that is final.
  local function fail(piece, i, err)
    local index = piece.first + i - 1
    if piece.tries < retry then
      piece.items = open(piece.items, piece.n)
      again.add(index, piece.items[i], piece.tries)
      return false
    end
    errors = errors or {}
    errors[index] = err
    return true
  end

  local function take_errors(piece, task, failed)
    local place = ("submitted at %s:%d"):format(job.source, job.line)
    local finished = piece.n
    for i, err in pairs(failed) do
      err.task_id = err.task_id or task.id
      err.traceback = (err.traceback and err.traceback .. "\n" or "") .. place
      if not fail(piece, i, err) then finished = finished - 1 end
    end
    return finished
  end

  -- The whole chunk: it took too long, its state was lost, the pool was closed.
  local function take_failure(piece, task)
    local err, finished = task:_error(), piece.n
    if err.code == core.ERR_SHUTDOWN then job:stop(err) end
    for i = 1, piece.n do
      if not fail(piece, i, err) then finished = finished - 1 end
    end
    return finished
  end

  local function take_values(results, first, n)
    if type(results) == "string" then
      unpack_numbers(results, values, first, n)
    else
      for i = 1, n do values[first + i - 1] = results[i] end
    end
  end

  function job.take(piece, task)
    local finished = piece.n
    if task[1] < 0 then
      finished = take_failure(piece, task)
    else
      measure(piece.n, task[2])
      if task[3] then take_values(task[3], piece.first, piece.n) end
      if task[4] then finished = take_errors(piece, task, task[4]) end
    end
    done = done + finished
    if on_progress and finished > 0 then
      local ok, err = pcall(on_progress, done, total)
      if not ok then job:fail(err) end
    end
  end

  if options.retry then job.due = again.due end
  local err = job:run()
  if err then return nil, err end
  return values, errors
end

---@class threadpool.MapOptions
---@field limit? integer      so many calls of fn at once, also while they await something; default: two for each worker
---@field retry? integer      so many more tries for an item that fails
---@field backoff? number     seconds before the second try, default 0.1; twice as long each time, +- a quarter
---@field on_progress? fun(done: integer, total: integer?)  called on this thread; if it raises, the rest is cancelled
---@field chunk? integer      items of a task; default: as many as take 1 ms
---@field timeout? number     seconds, for a task; then a chunk is one item, if not told otherwise
---@field priority? "high"|"normal"|"low"
---@field n? integer          how many items there are

---Call fn(item, index) for each item, on workers; the results come in the order of the items. An item whose function
---fails is nil among the values and has its error at errors[index]; the others go on. Only the first result of fn
---counts.
---
---  local values, errors = pool:map({ 1, 2, 3 }, function(n) return n * n end)
---
---A list is a table (with nil among its items: give `n`), a number for 1 to n, `{ first =, last = }`, an array of the
---FFI with `n` (the index that fn gets is from 1), or an iterator function, which is called until it returns nil. What
---is raised in that, or in on_progress, is raised here, and what is in flight is cancelled.
---
---@param pool threadpool.Pool
---@param list table|integer|function|ffi.cdata*
---@param fn fun(item: any, index: integer): any
---@param options? threadpool.MapOptions
---@return table? values  nil: the pool could not go on; then the error follows
---@return table<integer, threadpool.Error>|threadpool.Error|nil errors  nil: none failed
function M.map(pool, list, fn, options)
  local values, errors = run("map", pool, list, fn, options, false) -- no tail call: levels count this function
  return values, errors
end

---As map, but what fn returns is not wanted.
---@param pool threadpool.Pool
---@param list table|integer|function|ffi.cdata*
---@param fn fun(item: any, index: integer)
---@param options? threadpool.MapOptions
---@return boolean? ok  whether none failed; nil: the pool could not go on; then the error follows
---@return table<integer, threadpool.Error>|threadpool.Error|nil errors
function M.each(pool, list, fn, options)
  local values, errors = run("each", pool, list, fn, options, true)
  if Error.is(errors) then return values, errors end
  return errors == nil, errors
end

---Fold a list: fn(fn(fn(init, item1), item2), item3). fn must be associative (as addition is), and what it returns be
---of the kind of the items: chunks are folded on workers, then their results here, in order. Without init the first
---item begins.
---
---  local sum = pool:reduce(list, function(a, b) return a + b end, 0)
---
---@param pool threadpool.Pool
---@param list table|integer|function|ffi.cdata*  as of map
---@param fn fun(acc: any, item: any): any
---@param init any
---@param options? threadpool.MapOptions  without retry
---@return any acc
---@return threadpool.Error? err  of the first chunk that failed; the others are cancelled
function M.reduce(pool, list, fn, init, options)
  options = check("reduce", fn, options, 2)
  if options.retry ~= nil then error("reduce: unknown option 'retry'", 2) end
  local take, total = source_of("reduce", list, options.n, 2)
  local job = chunks.new("reduce", pool, options, 2)
  local size, measure = sizes(job, options, total)
  local on_progress = options.on_progress
  local key = key_of(fn)
  local acc, begun, folded, sent, next_one, done = init, init ~= nil, {}, 0, 1, 0

  function job.next()
    local items, n = take(size())
    if n == 0 then return nil end
    sent = sent + 1
    return { n = n, items = items, number = sent }
  end

  function job.spawn(piece)
    return job:send(core.spawn(pool._core, job.options, on_worker, "_fold", key, fn, piece.n, piece.items))
  end

  local function combine()
    while folded[next_one] do
      local value = folded[next_one][3]
      folded[next_one] = nil
      next_one = next_one + 1
      if begun then
        local ok, result = xpcall(fn, failure, acc, value)
        if not ok then return job:stop(result) end
        acc = result
      else
        acc, begun = value, true
      end
    end
  end

  function job.take(piece, task)
    if task[1] < 0 then return job:stop(task:_error()) end
    measure(piece.n, task[2])
    folded[piece.number] = task
    combine()
    done = done + piece.n
    if on_progress then
      local ok, err = pcall(on_progress, done, total)
      if not ok then job:fail(err) end
    end
  end

  local err = job:run()
  if err then return nil, err end
  return acc
end

return M
