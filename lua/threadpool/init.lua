---threadpool: run work in parallel from Lua. The reference is docs/LUA.md.
---
---  local threadpool = require "threadpool"
---  local pool = threadpool.new()
---  print(pool:spawn(function(a, b) return a + b end, 1, 2):await())

if type(jit) ~= "table" then
  error("threadpool needs LuaJIT 2.1: run it with `luajit` (this is " .. tostring(_VERSION) .. ")", 0)
end

local core = require "threadpool.core"
local Error = require "threadpool.error"
local channel = require "threadpool.channel"
local group = require "threadpool.group"
local Pool = require "threadpool.pool"
local Task = require "threadpool.task"
local sched = require "threadpool.sched"
local share = require "threadpool.share"

local M = {}

M.Error, M.Pool, M.Task = Error, Pool, Task
M.share = share.share

local newest = setmetatable({}, { __mode = "v" })

local names = { workers = true, blocking = true, drain_ms = true, park_timeout_ms = true, idle_yield = true,
  pin = true, max_pending = true, max_request_bytes = true, max_depth = true, window = true,
  initial_capacity = true, init = true, grace = true }

---@class threadpool.Options
---@field workers? integer            threads; 0: one for each CPU
---@field blocking? integer           threads for what blocks, at most
---@field max_pending? integer        requests whose results were not fetched yet, at most
---@field max_request_bytes? integer
---@field max_depth? integer          of a request's JSON
---@field window? integer             partial results of a task that nobody has read, at most; default 512
---@field initial_capacity? integer
---@field park_timeout_ms? integer
---@field drain_ms? integer
---@field idle_yield? boolean
---@field pin? boolean
---@field init? function              each worker's Lua state calls it first
---@field grace? number               seconds that a function which was told to end may take; then it is stopped

---Make a pool. Misuse raises; nil and an error: it cannot be made.
---@param options? string|threadpool.Options  a string: the path of a config file
---@return threadpool.Pool? pool
---@return threadpool.Error? err
function M.new(options)
  if sched.in_worker then error("threadpool.new: a worker has its pool: threadpool.here()", 2) end
  local o = {}
  if type(options) == "string" then
    o.config = options
  elseif type(options) == "table" then
    for k, v in pairs(options) do
      if not names[k] then error(("threadpool.new: unknown option '%s'"):format(tostring(k)), 2) end
      o[k] = v
    end
    if o.init ~= nil and type(o.init) ~= "function" then
      error("threadpool.new: option 'init': a function expected, got " .. type(o.init), 2)
    end
    if o.grace ~= nil and (type(o.grace) ~= "number" or not (o.grace >= 0 and o.grace < 1e5)) then
      error("threadpool.new: option 'grace': seconds expected, 0 or more", 2)
    end
  elseif options ~= nil then
    error("threadpool.new: a table of options or the path of a config file expected, got " .. type(options), 2)
  end
  -- With the C library's 64 who emits and who reads are in step, and wake each other all the time.
  if not o.config then o.window = o.window or 512 end
  o.path, o.cpath = package.path, package.cpath
  o.grace_ms = math.ceil((o.grace or 1) * 1000)
  local ok, handle, code, message = pcall(core.create, o)
  if not ok then error("threadpool.new: " .. tostring(handle), 2) end
  if not handle then return nil, Error.new(code, message) end
  local pool = Pool.wrap(handle)
  newest[1] = pool
  return pool
end

---The pool that functions of the module use: on a worker its own; else the newest, or one with default options.
---@return threadpool.Pool
function M.here()
  if sched.in_worker then return Pool.here() end
  local pool = newest[1]
  if not pool or pool._closed then
    pool = assert(M.new())
    M._default = pool
  end
  return pool
end

---@see threadpool.Pool.submit
---@overload fun(request: string|table, options?: table): threadpool.Task?, threadpool.Error?
function M.submit(...) return M.here():submit(...) end
---@see threadpool.Pool.spawn
---@overload fun(options: threadpool.SpawnOptions|function, ...: any): threadpool.Task?, threadpool.Error?
function M.spawn(...) return M.here():spawn(...) end
---@see threadpool.Pool.stream
---@overload fun(request: string|table|function, ...: any): fun(): any
function M.stream(...) return M.here():stream(...) end

---@see threadpool.Pool.map
---@overload fun(list: any, fn: function, options?: threadpool.MapOptions): table?, any
function M.map(...) return M.here():map(...) end
---@see threadpool.Pool.each
---@overload fun(list: any, fn: function, options?: threadpool.MapOptions): boolean?, any
function M.each(...) return M.here():each(...) end
---@see threadpool.Pool.reduce
---@overload fun(list: any, fn: function, init?: any, options?: threadpool.MapOptions): any, threadpool.Error?
function M.reduce(...) return M.here():reduce(...) end
---@see threadpool.Pool.for_range
---@overload fun(range: integer|threadpool.Range, fn: function, ...: any): boolean?, threadpool.Error?
function M.for_range(...) return M.here():for_range(...) end

function sched.timer(seconds)
  local ms = math.min(math.max(math.ceil(seconds * 1000), 0), 4294967295)
  return assert(M.here():submit(('{"op":"sleep","args":{"ms":%.0f}}'):format(ms)))
end

---Wait so many seconds; in a coroutine the others go on.
---@param seconds number
function M.sleep(seconds)
  if type(seconds) ~= "number" or seconds ~= seconds then
    error("sleep: seconds expected, got " .. tostring(seconds), 2)
  end
  if seconds > 0 then sched.sleep(seconds) end
end

---@see threadpool.Channel
M.channel = channel.new
M.group, M.first, M.all = group.group, group.first, group.all

M.run, M.go, M.pump = sched.run, sched.go, sched.pump

---Set what is called with the message and traceback of a callback or a coroutine of `go` that raises.
---@param fn? fun(err: string)  nil: it is written to stderr
function M.on_error(fn)
  if fn ~= nil and type(fn) ~= "function" then error("on_error: a function expected, got " .. type(fn), 2) end
  sched.on_error = fn or sched.report
end

if sched.in_worker then
  ---On a worker: send a partial result. It waits while too many are unread.
  ---@param value any  not nil
  ---@return boolean  false: nobody wants it any more
  function M.emit(value)
    if value == nil then error("emit: a value expected, got nil", 2) end
    local code = core.emit(value)
    while code == core.ERR_QUEUE_FULL do
      sched.wait_for_turn()
      code = core.emit(value)
    end
    if code == 0 then return true end
    if code == core.ERR_CANCELLED then return false end
    error(Error.new(code), 2)
  end

  ---On a worker: whether the task was asked to end.
  ---@return boolean
  function M.cancelled() return core.cancelled() end

  M.task_id = core.id
else
  local function refuse(name)
    return function() error(name .. ": it is for functions on a worker (pool:spawn)", 2) end
  end
  M.emit, M.cancelled, M.task_id = refuse "emit", refuse "cancelled", refuse "task_id"
end

return M
