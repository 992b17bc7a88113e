---Many tasks of one kind, some of them in flight at a time: what map, reduce and loops over ranges have in common.
---
---A *job* has functions of its kind: next() gives a piece, or nil; spawn(piece) sends it, by job:send; take(piece,
---task) has what came back. run() keeps `limit` pieces in flight until there are no more.
---
---  K1  A task tells the job through a reference that is weak: a job that nobody has any more (its coroutine was
---      dropped) is collected, and then its guard cancels what is in flight.
---  K2  Whoever waits for the job watches its `signal`, which is to sched like a task that is never over.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local Task = require "threadpool.task"
local sched = require "threadpool.sched"

local pairs, type, tostring = pairs, type, tostring
local ERR_QUEUE_FULL = core.ERR_QUEUE_FULL

local M = {}

---@class threadpool.Job
---@field next fun(): table?
---@field spawn fun(piece: table): threadpool.Task?, integer?, string?
---@field take fun(piece: table, task: threadpool.Task)
---@field limit integer
---@field workers integer
---@field options table       of core.spawn
---@field active integer      pieces in flight
local Job = {}
Job.__index = Job

-- --- arguments

-- `level`, here and in map.lua: what the function that calls would give to `error`, to name who called it.

---@param level integer
function M.check_name(what, name, known, level)
  for i = 1, #known do
    if known[i] == name then return end
  end
  error(("%s: unknown option '%s': expected %s"):format(what, tostring(name), table.concat(known, ", ")), level + 1)
end

function M.check_count(what, name, value, least, level)
  if type(value) == "number" and value >= least and value == math.floor(value) then return end
  error(("%s: %s: a whole number expected, %d or more, got %s"):format(what, name, least,
    type(value) == "number" and tostring(value) or type(value)), level + 1)
end

-- --- a job

local signals = 0

---@param what string      for messages: "map"
---@param pool threadpool.Pool
---@param options table    limit, timeout, priority
---@param level integer
---@return threadpool.Job
function M.new(what, pool, options, level)
  if pool._closed then error(what .. ": the pool is closed", level + 1) end
  local workers = core.workers(pool._core)
  local limit = options.limit
  if limit == nil then limit = math.max(2 * workers, 2) else M.check_count(what, "limit", limit, 1, level + 1) end
  local place = debug.getinfo(level + 1, "Sl")
  signals = (signals + 1) % 2 ^ 20
  return setmetatable({
    what = what, pool = pool, limit = limit, workers = workers, active = 0, pieces = {}, done = {}, done_count = 0,
    options = { timeout = options.timeout, priority = options.priority },
    source = place and place.short_src or "?", line = place and place.currentline or 0,
    signal = { id = signals + 0.25 }, -- no task has such an index (group.lua has halves)
  }, Job)
end

---Those in flight end, and nobody wants what they give.
local function cancel(pieces)
  for task in pairs(pieces) do
    task:cancel()
    task:detach()
    pieces[task] = nil
  end
end

-- K1
local function tell(task, watcher)
  local job = watcher.job
  if task[1] == false or not job then return end
  job.done_count = job.done_count + 1
  job.done[job.done_count] = task
  local watch = job.signal._watch
  for i = watch and #watch or 0, 1, -1 do sched.wake(watch[i]) end
end

local weak = { __mode = "v" }

---Where it was called, as messages begin.
function Job:place()
  return ("%s:%d: %s: "):format(self.source, self.line, self.what)
end

---What core.spawn has returned, as a task; nil, code and message if it was refused.
---@param id integer?
function Job:send(id, code, message)
  if not id then return nil, code, message end
  local task = Task.new(self.pool, id, self.source, self.line)
  sched.add_watcher(task, self.watcher)
  return task
end

---No further pieces, and those in flight are cancelled; run returns err when they have ended.
---@param err any  nil: it is not a failure
function Job:stop(err)
  self.stopped = true
  if self.err == nil then self.err = err end
  for task in pairs(self.pieces) do task:cancel() end
end

---Leave at once, with an error.
function Job:fail(err)
  self:leave()
  error(err, 0)
end

---Nobody waits any more.
function Job:leave()
  cancel(self.pieces)
  self.active = 0
  self.stopped = true
  getmetatable(self.guard).__gc = nil
  if self.root then self.root.leaving[self.on_leave] = nil end
end

local function start(job, piece)
  while true do
    local ok, task, code, message = pcall(job.spawn, piece)
    if not ok and job.pool._closed then
      job:stop(Error.new(core.ERR_SHUTDOWN))
      return false
    end
    if not ok then job:fail(job:place() .. tostring(task):gsub("^%S-:%d+: ", "")) end
    if task then
      job.pieces[task] = piece
      job.active = job.active + 1
      return true
    end
    if code ~= ERR_QUEUE_FULL then
      job:stop(Error.new(code, message))
      return false
    end
    sched.wait_for_room()
  end
end

local function fill(job)
  while not job.stopped and job.active < job.limit do
    local ok, piece = pcall(job.next)
    if not ok then job:fail(piece) end
    if not piece or not start(job, piece) then return end
  end
end

local function is_ready(job)
  return job.done_count > 0
end

local function collect(job)
  local done, n = job.done, job.done_count
  job.done, job.done_count = {}, 0
  for i = 1, n do
    local task = done[i]
    local piece = job.pieces[task]
    if piece then
      job.pieces[task] = nil
      job.active = job.active - 1
      job.take(piece, task)
    end
  end
end

---Until all pieces have come back, or the job was stopped.
---@param to_the_end? boolean  wait for those in flight also when it was stopped
---@return any err  as given to stop
function Job:run(to_the_end)
  self.watcher = setmetatable({ tell = tell, job = self }, weak)
  local pieces = self.pieces
  local guard = newproxy(true)
  getmetatable(guard).__gc = function() cancel(pieces) end
  self.guard = guard
  if sched.in_worker then -- the caller is cancelled: nobody resumes it
    self.root = sched.current_root()
    self.root.leaving = self.root.leaving or {}
    self.on_leave = function() cancel(pieces) end
    self.root.leaving[self.on_leave] = true
  end
  local raised
  while true do
    fill(self)
    if self.stopped and not to_the_end then break end
    local due = self.due and not self.stopped and self.due() -- seconds until something is to be tried again
    if self.active == 0 and not due then break end
    -- It raises if the caller's group has failed.
    local ok, why = pcall(sched.wait, is_ready, self, { self.signal }, self.active < self.limit and due or nil,
      raised ~= nil)
    if not ok then
      if not to_the_end then self:fail(why) end
      raised = why
      self:stop(why)
    end
    collect(self)
  end
  self:leave()
  if raised ~= nil then error(raised, 0) end
  return self.err
end

return M
