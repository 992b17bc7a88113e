---Several tasks as one: groups, `first`, `all`, and `pool:join`.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local Task = require "threadpool.task"
local sched = require "threadpool.sched"

local type, setmetatable, select, unpack = type, setmetatable, select, unpack
local group_of, who_waits, why_stopped = sched.group_of, sched.who_waits, sched.why_stopped
local is_done, result = Task._is_done, Task._result

local M = {}

-- --- tasks of this state alone: they end when `settle` says so

local serial = 0

-- Between the ids of requests: so they can be told apart, and watched.
local function local_id()
  serial = serial + 1
  return serial + 0.5
end

local function settle(task, n, ...)
  task[1] = n
  for i = 1, select("#", ...) do task[i + 1] = (select(i, ...)) end
  sched.tell_watchers(task)
end

-- A coroutine of a group, as a task.
local Coroutine = {}
for name, value in pairs(Task) do Coroutine[name] = value end
Coroutine.__index = Coroutine

---@return boolean  false: it is ended by its group only
function Coroutine:cancel() -- luacheck: ignore self
  return false
end

function Coroutine:status() return self[1] == false and "running" or "done" end

function Coroutine:detach() -- luacheck: ignore self
end

function Coroutine:__tostring() return ("threadpool.Task of a coroutine (%s)"):format(self:status()) end

-- --- errors

---Whatever was raised, as an Error. Under xpcall, so that the traceback is there.
local function as_error(what)
  if Error.is(what) then return what end
  local text = type(what) == "string"
  return Error.new(core.ERR_LUA, text and what or "error object: " .. tostring(what),
    { value = not text and what or nil, traceback = debug.traceback(text and what or nil, 2) })
end

local function timed_out(what, seconds)
  return Error.new(core.ERR_TIMEOUT, ("%s: it has not ended after %g s"):format(what, seconds))
end

local function check_timeout(options, name)
  local seconds = options and options.timeout
  if seconds ~= nil and not (type(seconds) == "number" and seconds > 0) then
    error(name .. ": timeout: seconds expected, more than 0", 3)
  end
  if seconds and not sched.timer then require "threadpool" end
  return seconds
end

-- --- groups

---@class threadpool.Group
---@field err? threadpool.Error   why it has failed
---@field outer? threadpool.Group the one that its function runs in
---@field deadline? number        as of core.now
local Group = {}
Group.__index = Group

local function resume_waits(group)
  local all = {}
  for waiter in pairs(group.waits) do all[#all + 1] = waiter end
  for i = 1, #all do sched.wake(all[i]) end
end

-- All that is inside is told to end; groups inside it, too.
local function stop(group)
  for task in pairs(group.tasks) do
    if getmetatable(task) ~= Coroutine then task:cancel() end
  end
  resume_waits(group)
  for inner in pairs(group.inner) do stop(inner) end
end

function Group:_fail(err)
  if self.err or self.over then return end
  self.err = err
  stop(self)
end

local function ended(task, watcher)
  if task[1] == false then return end
  local group = watcher.group
  if not group.tasks[task] then return end
  group.tasks[task] = nil
  group.pending = group.pending - 1
  local code = task[1]
  if code < 0 and not group.err and not (code == core.ERR_CANCELLED and task._asked) then
    group:_fail(task:_error())
  end
  if group.pending == 0 then sched.tell_watchers(group) end
end

function Group:_add(task, err)
  if not task then
    self:_fail(err)
    return nil, err
  end
  self.tasks[task] = true
  self.pending = self.pending + 1
  if task[1] ~= false then
    ended(task, { group = self })
  else
    sched.add_watcher(task, { tell = ended, group = self })
  end
  return task
end

---How many seconds its tasks have left; nil: it has no deadline.
---@return number? seconds
function Group:left()
  return self.deadline and math.max(self.deadline - core.now(), 0)
end

-- Why nothing can be started.
local function refuse(group, name)
  if group.over then error(name .. ": the group has ended", 3) end
  return why_stopped(group)
end

local function pool_of(group)
  group.pool = group.pool or require("threadpool").here()
  return group.pool
end

-- Milliseconds may be lost on the way: a task ends no sooner than its group does.
local function timeout_within(group, seconds)
  local left = group:left()
  if not left then return seconds end
  left = math.max(left, 0.001)
  return seconds and math.min(seconds, left) or left
end

local function place(task)
  local info = task and debug.getinfo(3, "Sl")
  if info and info.currentline > 0 then task._source, task._line = info.short_src, info.currentline end
end

---As Pool.spawn, for a task of the group: with no more time than that has left.
---@param options table|function
---@param ... any
---@return threadpool.Task? task
---@return threadpool.Error? err  it was not accepted, or the group has failed
function Group:spawn(options, ...)
  local why = refuse(self, "spawn")
  if why then return nil, why end
  local pool = pool_of(self)
  local ok, task, err
  if type(options) == "function" and not self.deadline then
    ok, task, err = pcall(pool.spawn, pool, options, ...)
  else
    local o = { }
    if type(options) == "table" then
      for k, v in pairs(options) do o[k] = v end
    elseif type(options) ~= "function" then
      error("spawn: a function expected, or a table of options and a function, got " .. type(options), 2)
    end
    o.timeout = timeout_within(self, o.timeout)
    if type(options) == "function" then
      ok, task, err = pcall(pool.spawn, pool, o, options, ...)
    else
      ok, task, err = pcall(pool.spawn, pool, o, ...)
    end
  end
  if not ok then error(task, 2) end
  place(task)
  return self:_add(task, err)
end

---As Pool.submit, for a task of the group.
---@param request string|table
---@param options? table
---@return threadpool.Task? task
---@return threadpool.Error? err  it was not accepted, or the group has failed
function Group:submit(request, options)
  local why = refuse(self, "submit")
  if why then return nil, why end
  if self.deadline and type(request) == "table" then
    local copy = {}
    for k, v in pairs(request) do copy[k] = v end
    local given = tonumber(copy.timeout_ms)
    copy.timeout_ms = math.ceil(timeout_within(self, given and given > 0 and given / 1000) * 1000)
    request = copy
  end
  local pool = pool_of(self)
  local ok, task, err = pcall(pool.submit, pool, request, options)
  if not ok then error(task, 2) end
  return self:_add(task, err)
end

---Start a coroutine. If it raises the group fails; if the group fails before, what it waits for raises the group's
---error.
---@param fn function
---@param ... any  its arguments
---@return threadpool.Task? task  it can be awaited, for what the function returns
---@return threadpool.Error? err  the group has failed
function Group:go(fn, ...)
  if type(fn) ~= "function" then error("go: function expected, got " .. type(fn), 2) end
  local why = refuse(self, "go")
  if why then return nil, why end
  local task = setmetatable({ false, false, id = local_id() }, Coroutine)
  local n, args = select("#", ...), { ... }
  local function finish(ok, ...)
    if ok then settle(task, select("#", ...), ...) else
      task._err = (...)
      settle(task, task._err.code, task._err.message)
    end
  end
  local co = sched.go(function()
    local early = why_stopped(self)
    if early then return finish(false, early) end
    finish(xpcall(function() return fn(unpack(args, 1, n)) end, as_error))
  end)
  group_of[co] = self
  return self:_add(task)
end

local function is_empty(group) return group.pending == 0 end

local function pack(ok, ...) return { ok, n = select("#", ...), ... } end

---Call fn(group), and wait until everything that was started in the group has ended. When one of those fails (another's
---`cancel` is no failure), or fn raises, or the time is over, the rest is cancelled, and what fn and coroutines of the
---group wait for raises that error. A group inside a group ends with it, and has no more time.
---@param fn fun(group: threadpool.Group): any  runs here and now
---@param options? { timeout?: number, pool?: threadpool.Pool }
---@return any ...  what fn returned; nil and the first error, if anything has failed
function M.group(fn, options)
  if type(fn) ~= "function" then error("group: function expected, got " .. type(fn), 2) end
  if options ~= nil and type(options) ~= "table" then
    error("group: a table of options expected, got " .. type(options), 2)
  end
  local seconds = check_timeout(options, "group")
  local waiter = who_waits(sched.current_root())
  local outer = waiter and group_of[waiter] or nil
  local group = setmetatable({ id = local_id(), false, pending = 0, tasks = {}, inner = {}, outer = outer,
    waits = setmetatable({}, { __mode = "k" }), pool = options and options.pool or outer and outer.pool }, Group)
  if outer and outer.deadline then group.deadline = outer.deadline end
  local timer
  if seconds and not (group.deadline and group.deadline <= core.now() + seconds) then
    group.deadline = core.now() + seconds
    timer = sched.timer(seconds)
    sched.add_watcher(timer, { tell = function() group:_fail(timed_out("group", seconds)) end })
  end
  if waiter then group_of[waiter] = group end
  if outer then outer.inner[group] = true end
  local outcome = pack(xpcall(function() return fn(group) end, as_error))
  if not outcome[1] then
    -- The error of an outer group has stopped this one already.
    if why_stopped(outer) ~= outcome[2] then group:_fail(outcome[2]) end
  end
  if why_stopped(outer) then stop(group) end
  sched.wait(is_empty, group, { group }, nil, true)
  group.over = true
  if outer then outer.inner[group] = nil end
  if waiter then group_of[waiter] = outer end
  if timer then
    timer:cancel()
    timer:detach()
  end
  local err = group.err or why_stopped(outer) or not outcome[1] and outcome[2]
  if err then return nil, err end
  return unpack(outcome, 2, outcome.n + 1)
end

-- --- several tasks

local function check_tasks(tasks, name)
  if type(tasks) ~= "table" or #tasks == 0 then error(name .. ": a list of tasks expected", 3) end
  for i = 1, #tasks do
    local task = tasks[i]
    if type(task) ~= "table" or type(task.await) ~= "function" then
      error(("%s: a list of tasks expected, got a %s at %d"):format(name, type(task), i), 3)
    end
  end
end

-- Wait until look(i, task), which is called for each that ends, returns true. False: the time is over.
local function watch(tasks, seconds, look)
  local gate = { false, id = local_id() }
  local index = {}
  local function tell(task, watcher)
    if gate[1] ~= false then return end
    if task[1] == false and not (task._take and task:_take()) then return end
    if look(watcher.index, task) then settle(gate, 0) end
  end
  for i = 1, #tasks do
    local task = tasks[i]
    local watcher = { tell = tell, index = i }
    index[i] = watcher
    if task[1] ~= false then tell(task, watcher) else sched.add_watcher(task, watcher) end
    if gate[1] ~= false then break end
  end
  local ok, good = pcall(sched.wait, is_done, gate, { gate }, seconds)
  gate[1] = gate[1] or 0
  for i = 1, #index do
    sched.remove_watcher(tasks[i], index[i])
  end
  if not ok then error(good, 0) end
  return good
end

local function cancel_rest(tasks, options)
  if not (options and options.cancel) then return end
  for i = 1, #tasks do
    if tasks[i][1] == false then tasks[i]:cancel() end
  end
end

---Wait for the first of several tasks that ends, well or not. The others go on, unless options.cancel is true.
---
---  local task, i = threadpool.first { a, b, channel:receive_task() }
---  local value, err = task:await()
---
---@param tasks threadpool.Task[]
---@param options? { cancel?: boolean, timeout?: number, success?: boolean }  success: the first that ends well; if
---                                                                          none does, the last that failed
---@return threadpool.Task? task
---@return integer|threadpool.Error index  its place in the list; nil and ERR_TIMEOUT: none has ended in this time
function M.first(tasks, options)
  check_tasks(tasks, "first")
  local seconds = check_timeout(options, "first")
  local success = options and options.success
  local left, task, index = #tasks, nil, nil
  local good = watch(tasks, seconds, function(i, t)
    left = left - 1
    if success and t[1] < 0 and left > 0 then return false end
    task, index = t, i
    return true
  end)
  cancel_rest(tasks, options)
  if not good then return nil, timed_out("first", seconds) end
  return task, index
end

---Wait for several tasks. When one fails the others go on, unless options.cancel is true.
---@param tasks threadpool.Task[]
---@param options? { cancel?: boolean, timeout?: number }
---@return table? results    the first value of each, in order; results.n: how many; nil: one has failed
---@return threadpool.Error? err  of the one that failed first, or ERR_TIMEOUT
---@return integer? index    its place in the list
function M.all(tasks, options)
  if type(tasks) == "table" and #tasks == 0 and next(tasks) == nil then return { n = 0 } end
  check_tasks(tasks, "all")
  local seconds = check_timeout(options, "all")
  local left, failed = #tasks, nil
  local good = watch(tasks, seconds, function(i, task)
    left = left - 1
    if task[1] < 0 then failed = i end
    return failed ~= nil or left == 0
  end)
  if not good or failed then cancel_rest(tasks, options) end
  if failed then return nil, tasks[failed]:_error(), failed end
  if not good then return nil, timed_out("all", seconds) end
  local results = { n = #tasks }
  for i = 1, #tasks do results[i] = (result(tasks[i])) end
  return results
end

---Run functions on workers at the same time: pool:join(f, g, ...).
---@param pool threadpool.Pool
---@param ... function
---@return any ...  the first result of each, in order; nil, err and the function's number, if one fails: the others
---                 are cancelled then
function M.join(pool, ...)
  local n, tasks = select("#", ...), {}
  for i = 1, n do
    local fn = select(i, ...)
    if type(fn) ~= "function" then
      error(("join: functions expected, got a %s at %d"):format(type(fn), i), 2)
    end
  end
  if n == 0 then return end
  for i = 1, n do
    local ok, task, err = pcall(pool.spawn, pool, (select(i, ...)))
    if not ok or not task then
      for k = 1, i - 1 do tasks[k]:cancel() end
      if not ok then error(("join: function %d: %s"):format(i, (tostring(task):gsub("^%S-:%d+: ", ""))), 2) end
      return nil, err, i
    end
    place(task)
    tasks[i] = task
  end
  local results, err, index = M.all(tasks, { cancel = true })
  if not results then return nil, err, index end
  return unpack(results, 1, n)
end

return M
