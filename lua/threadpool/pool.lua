---A pool of workers, as a program has it.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local Task = require "threadpool.task"
local group = require "threadpool.group"
local json = require "threadpool.json"
local map = require "threadpool.map"
local sched = require "threadpool.sched"
local share = require "threadpool.share"

local type = type

---@class threadpool.Pool
---@field _core userdata
---@field _base integer  added to the indexes of its tasks in sched.handles
---@field _pool ffi.cdata*?  of handle()
local Pool = {}
Pool.__index = Pool
Pool.__threadpool = "threadpool.pool"

local ERR_QUEUE_FULL = core.ERR_QUEUE_FULL

---@param handle userdata  of the core
---@return threadpool.Pool
function Pool.wrap(handle)
  local base = core.base(handle)
  sched.cores[base] = handle
  return setmetatable({ _core = handle, _base = base }, Pool)
end

-- On a worker it is the pool that the worker belongs to.
function Pool.pack()
end

local here

function Pool.unpack()
  if not core.pool then error("a pool can be sent to its own workers only", 0) end
  here = here or Pool.wrap(core.pool)
  return here
end

---The pool of this worker.
Pool.here = Pool.unpack

---@param again fun(): integer?, integer?, string?
local function retry(again)
  while true do
    sched.wait_for_room()
    local id, code, message = again()
    if id then return id, code, message end
    if code ~= ERR_QUEUE_FULL then return nil, Error.new(code, message) end
  end
end

local known = { on_partial = "function", on_result = "function", on_error = "function", nowait = "boolean" }
local known_to_spawn = { timeout = "number", priority = "string", blocking = "boolean" }

---Raises at the line that called the function that called this.
local function check_options(name, options, more)
  if type(options) ~= "table" then
    error(("%s: a table of options expected, got %s"):format(name, type(options)), 3)
  end
  for k, v in pairs(options) do
    local expected = known[k] or more and more[k]
    if not expected then error(("%s: unknown option '%s'"):format(name, tostring(k)), 3) end
    if type(v) ~= expected then
      error(("%s: option '%s': a %s expected, got %s"):format(name, k, expected, type(v)), 3)
    end
  end
end

---Submit a request: JSON text, or a table that is written as JSON. It waits while max_pending requests are under way.
---@param request string|table
---@param options? { on_partial?: function, on_result?: function, on_error?: function, nowait?: boolean }
---@return threadpool.Task? task  nil: it was not accepted
---@return threadpool.Error? err
function Pool:submit(request, options)
  local text = request
  if type(request) == "table" then
    local ok
    ok, text = pcall(json.encode, request)
    if not ok then error("submit: " .. text, 2) end
  elseif type(request) ~= "string" then
    error("submit: a table or JSON text expected, got " .. type(request), 2)
  end
  if options ~= nil then check_options("submit", options) end
  local id, code, message = core.submit(self._core, text)
  if not id then
    if code ~= ERR_QUEUE_FULL or (options and options.nowait) then return nil, Error.new(code, message) end
    local err
    id, err = retry(function() return core.submit(self._core, text) end)
    if not id then return nil, err end
  end
  local task = Task.new(self, id)
  task._json = true
  if options and (options.on_partial or options.on_result or options.on_error) then task:_on(options) end
  return task
end

local spawn, absorb = core.spawn, sched.absorb
local since_absorb = 0

---@class threadpool.SpawnOptions
---@field timeout? number                     seconds, after which it ends with ERR_TIMEOUT
---@field priority? "high"|"normal"|"low"
---@field blocking? boolean                   it blocks in C: it gets a thread of its own meanwhile
---@field nowait? boolean                     ERR_QUEUE_FULL instead of waiting for room
---@field on_partial? function                as of threadpool.Task.on
---@field on_result? function
---@field on_error? function

---Run a Lua function on a worker. Its arguments, results and upvalues are copied.
---
---  pool:spawn(fn, 1, 2)
---  pool:spawn({ timeout = 5 }, fn, 1, 2)
---
---@param options threadpool.SpawnOptions
---@param ... any  the function and its arguments
---@return threadpool.Task? task  nil: it was not accepted
---@return threadpool.Error? err
---@overload fun(self: threadpool.Pool, fn: function, ...: any): threadpool.Task?, threadpool.Error?
function Pool:spawn(options, ...)
  if type(options) == "function" then
    since_absorb = since_absorb + 1
    if since_absorb >= 64 then
      since_absorb = 0
      absorb() -- not between spawn and Task.new: its own result would find no task
    end
    local id, source, line = spawn(self._core, nil, options, ...)
    if id then return Task.new(self, id, source, line) end
    return self:_spawn_slowly(nil, source, line, options, ...)
  end
  if type(options) ~= "table" or type((...)) ~= "function" then
    error("spawn: a function expected, or a table of options and a function, got " .. type(options) ..
      (type(options) == "table" and " and " .. type((...)) or ""), 2)
  end
  check_options("spawn", options, known_to_spawn)
  local id, source, line = spawn(self._core, options, ...)
  if not id then return self:_spawn_slowly(options, source, line, ...) end
  local task = Task.new(self, id, source, line)
  if options.on_partial or options.on_result or options.on_error then task:_on(options) end
  return task
end

function Pool:_spawn_slowly(options, code, message, ...)
  if code ~= ERR_QUEUE_FULL or (options and options.nowait) then return nil, Error.new(code, message) end
  local n, args = select("#", ...), { ... }
  local id, source, line = retry(function()
    return spawn(self._core, options, unpack(args, 1, n))
  end)
  if not id then return nil, source end
  local task = Task.new(self, id, source, line)
  if options and (options.on_partial or options.on_result or options.on_error) then task:_on(options) end
  return task
end

---The partial results of a request or of a function: `for part in pool:stream(...) do`. A failure raises its error.
---@param request string|table|function
---@param ... any
---@return fun(): any
function Pool:stream(request, ...)
  local task, err
  if type(request) ~= "function" and type(request) ~= "table" and type(request) ~= "string" then
    error("stream: a function, a table or JSON text expected, got " .. type(request), 2)
  end
  local is_function = type(request) == "function" or type((...)) == "function"
  local ok
  ok, task, err = pcall(is_function and self.spawn or self.submit, self, request, ...) -- misuse: of our caller
  if not ok then error(task, 2) end
  if not task then error(err, 2) end
  if is_function then
    local caller = debug.getinfo(2, "Sl")
    if caller and caller.currentline > 0 then task._source, task._line = caller.short_src, caller.currentline end
  end
  local proxy = newproxy(true) -- a loop that is left: nobody wants the rest
  getmetatable(proxy).__gc = function() task:cancel() task:detach() end
  return function()
    local part = task:next()
    if part == nil and proxy then
      proxy = nil
      if task[1] < 0 then error(task:_error(), 2) end
    end
    return part
  end
end

---Run functions on workers at the same time.
---
---  local a, b = pool:join(f, g)
---
---@type fun(self: threadpool.Pool, ...: function): any
Pool.join = group.join
Pool.map, Pool.each, Pool.reduce = map.map, map.each, map.reduce
Pool.region, Pool.for_range = share.region, share.for_range

---@param worker? integer  counted from 1; nil: all
---@return table<string, integer>  the counters of docs/LUA.md
function Pool:stats(worker)
  if worker ~= nil and type(worker) ~= "number" then
    error("stats: the number of a worker expected, got " .. type(worker), 2)
  end
  local stats = core.stats(self._core, worker)
  stats.workers = core.workers(self._core)
  stats.pending = core.pending(self._core)
  return stats
end

---A descriptor that is readable while pump has something to do: for the event loop of somebody else.
---@return integer? fd
---@return threadpool.Error? err
function Pool:fd() -- luacheck: ignore self
  if core.pool then error("fd: a worker has no event loop of others: what waits there yields", 2) end
  local fd, code, message = core.fd()
  if not fd then return nil, Error.new(code, message) end
  return fd
end

---Deal with what has come: callbacks are called, coroutines go on.
---@param seconds? number  wait so long for something, if there is nothing
---@return boolean  whether there was something
function Pool:pump(seconds) -- luacheck: ignore self
  return sched.pump(seconds)
end

local function nothing_pending(pool)
  return core.pending(pool._core) == 0
end

---Let what is under way finish, cancel the rest, and end the workers. Results that have come can still be awaited.
---@param options? { drain?: number }  seconds that tasks may take to finish; default 5
---@return boolean  false: it was closed already
function Pool:close(options)
  if options ~= nil and type(options) ~= "table" then
    error("close: a table of options expected, got " .. type(options), 2)
  end
  local drain = options and options.drain or 5
  if type(drain) ~= "number" or drain ~= drain or drain < 0 then
    error("close: option 'drain': seconds expected, 0 or more", 2)
  end
  if core.pool then error("close: a worker cannot close its pool", 2) end
  if self._closed then return false end
  self._closed = true
  local deadline = core.now() + drain
  while not nothing_pending(self) and core.now() < deadline do
    sched.pump(math.min(0.05, deadline - core.now()))
  end
  core.close(self._core, -1)
  sched.pump()
  return true
end

---The C library's handle, `threadpool_t *`: for functions of `require "threadpool.library"`.
---@return ffi.cdata*
function Pool:handle()
  if not self._pool then
    require "threadpool.library"
    self._pool = require("ffi").cast("threadpool_t *", core.pointer(self._core))
  end
  return self._pool
end

function Pool:__tostring()
  return self._closed and "threadpool.Pool (closed)" or
      ("threadpool.Pool (%d workers)"):format(core.workers(self._core))
end

return Pool
