---A task: what submit and spawn return at once. Its result comes when somebody pumps: what waits here does.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local sched = require "threadpool.sched"

local unpack, setmetatable, type = unpack, setmetatable, type
local INDEX = core.INDEX
local handles, anchors = sched.handles, sched.anchors

---@class threadpool.Task
---@field id integer
---@field [1] integer|false  how many values it returned, or its code (negative); false: not yet (csrc/lua/env.c
---                           writes it)
local Task = {}
Task.__index = Task

---@param pool threadpool.Pool
---@param id integer
---@param source? string  where it was submitted
---@param line? integer
---@return threadpool.Task
function Task.new(pool, id, source, line)
  local task = setmetatable({ false, false, id = id, _pool = pool, _source = source, _line = line }, Task)
  handles[id % INDEX + pool._base] = task
  if anchors[1] ~= nil then Task._hold(task) end
  return task
end

---A task that is over before it began.
---@return threadpool.Task
function Task.failed(pool, code, message)
  return setmetatable({ code, message, id = 0, _pool = pool }, Task)
end

local drop_parts, take_part

local function is_done(task)
  return task[1] ~= false
end

function Task:_error()
  local err = self._err
  if err then return err end
  local fields = { task_id = self.id }
  local code, message = self[1], self[2]
  local value, traceback = self[3], self[4]
  if code == core.ERR_LUA and traceback then
    fields.traceback = traceback
    if Error.is(value) then
      code, message = value.code, value.message
      fields.remedy = value.remedy
      fields.value = value.value
      if value.traceback then fields.traceback = value.traceback .. "\nraised again:\n" .. traceback end
    elseif type(value) == "string" then
      message = value
    else
      fields.value = value
    end
  elseif self[3] ~= nil then
    fields.data = self[3]
  end
  if self._line then
    fields.traceback = (fields.traceback and fields.traceback .. "\n" or "") ..
        ("submitted at %s:%d"):format(self._source, self._line)
  end
  err = Error.new(code, message, fields)
  self._err = err
  return err
end

local function result(task)
  local n = task[1]
  if n == 1 then return task[2] end
  if n < 0 then return nil, task:_error() end
  if n == 0 and task._json then return true end
  return unpack(task, 2, n + 1)
end

---Raises at the line that called the function that called this.
local function check_seconds(name, seconds)
  if type(seconds) ~= "number" then
    error(("%s: seconds expected, got %s"):format(name, type(seconds)), 3)
  end
end

---Wait for the result. In a coroutine that yields; else results, callbacks and coroutines are dealt with meanwhile.
---@param seconds? number  at most so long; then nil and an error with ERR_TIMEOUT, and the task goes on
---@return any ...  what it returned (a request without data: true); nil and a threadpool.Error if it failed
function Task:await(seconds)
  if seconds ~= nil then check_seconds("await", seconds) end
  if self[1] == false and not sched.wait(is_done, self, { self }, seconds) then
    return nil, Error.new(core.ERR_TIMEOUT, ("task %d has not ended after %g s"):format(self.id, seconds),
      { task_id = self.id })
  end
  return result(self)
end

---Whether it is over. What has come is looked at first, without waiting.
---@return boolean
function Task:poll()
  if self[1] == false then sched.drain() end
  return self[1] ~= false
end

---Wait until it is over.
---@param seconds? number  at most so long
---@return boolean  whether it is
function Task:wait(seconds)
  if seconds ~= nil then check_seconds("wait", seconds) end
  return self[1] ~= false or sched.wait(is_done, self, { self }, seconds)
end

---Ask for its end. It ends with ERR_CANCELLED, unless it comes to its end before.
---@return boolean  false: it is over
function Task:cancel()
  if self[1] ~= false then return false end
  self._asked = true
  return core.cancel(self._pool._core, self.id) == 1
end

local states = { "queued", "running", "waiting", "done" }

---@return "queued"|"running"|"waiting"|"done"
function Task:status()
  if self[1] ~= false then return "done" end
  return states[core.status(self._pool._core, self.id)] or "done"
end

---Nobody wants its results any more: they are discarded when they come.
function Task:detach()
  if self[1] ~= false then return end
  if self._held then -- its end must be heard of
    self._held.detached = true
    local watch = self._watch
    for i = #watch, 1, -1 do -- callbacks are not called; who awaits it hears of it in the end
      local w = watch[i]
      if type(w) == "table" and w.tell and w ~= self._held then table.remove(watch, i) end
    end
    drop_parts(self, self._held)
    return
  end
  core.detach(self._pool._core, self.id)
  handles[self.id % INDEX + self._pool._base] = nil
  self[1], self[2] = core.ERR_CANCELLED, "detached"
  local watch = self._watch
  sched.remove_watchers(self)
  for i = 1, watch and #watch or 0 do -- who awaits it learns that nothing comes
    if type(watch[i]) == "thread" or not watch[i].tell then sched.wake(watch[i]) end
  end
end

-- --- partial results

local function has_part(task)
  if task[1] ~= false then return true end
  local parts = task._parts
  return parts ~= nil and parts[0] > (task._read or 0)
end

---The next partial result, without waiting; nil: there is none.
function take_part(task)
  local parts = task._parts
  if not parts then return nil end
  local at = (task._read or 0) + 1
  local n = parts[0]
  if at > n then return nil end
  local part = parts[at]
  parts[at] = nil
  task._read = at
  -- Room is given back in batches: each time the producer is told takes as long as ten parts.
  if at == n or at - (task._credited or 0) >= 16 then
    if task[1] == false then core.credit(task._pool._core, task.id, at - (task._credited or 0)) end
    task._credited = at
    if at == n then
      parts[0] = 0
      task._read, task._credited = 0, 0
    end
  end
  return part
end

---The next partial result; nil at the end. After that await() says how it ended.
---@return any
function Task:next()
  local part = take_part(self)
  if part ~= nil then return part end
  if self[1] == false then
    sched.wait(has_part, self, { self })
    return take_part(self)
  end
  return nil
end

---for part in task:partials() do ... end
---@return fun(task: threadpool.Task): any, threadpool.Task
function Task:partials()
  return Task.next, self
end

-- --- memory that a task uses by reference

function drop_parts(task, held)
  while held.detached and take_part(task) ~= nil do end -- luacheck: ignore
end

---The task is kept, and with it what is shared with it, until it is over: among its watchers, so that it goes with them.
function Task._hold(task)
  local held = { tell = drop_parts }
  for i = 1, #anchors do held[i], anchors[i] = anchors[i], nil end
  task._held = held
  sched.add_watcher(task, held)
end

-- --- callbacks

local function call(fn, ...)
  local ok, err = xpcall(fn, debug.traceback, ...)
  if not ok then sched.raise_aside(err) end
end

local function tell(task, on)
  if on.told then return end -- by a callback of its own that pumped
  if on.on_partial then
    local part = take_part(task)
    while part ~= nil do
      call(on.on_partial, part, task)
      part = take_part(task)
    end
  end
  if task[1] == false or on.told then return end
  on.told = true
  if task[1] >= 0 then
    if on.on_result then call(on.on_result, result(task)) end
  elseif on.on_error then
    call(on.on_error, task:_error(), task)
  elseif not on.quiet then
    sched.raise_aside(task:_error())
  end
end

local names = { on_partial = true, on_result = true, on_error = true }

---Have functions called from pump, run, or whatever else waits on this thread: on_partial(part, task),
---on_result(values...), on_error(err, task).
---@param callbacks { on_partial?: function, on_result?: function, on_error?: function }
---@return threadpool.Task self
function Task:on(callbacks)
  if type(callbacks) ~= "table" then error("on: a table of callbacks expected, got " .. type(callbacks), 2) end
  for name, fn in pairs(callbacks) do
    if not names[name] then error(("on: unknown callback '%s'"):format(tostring(name)), 2) end
    if type(fn) ~= "function" then
      error(("on: callback '%s': a function expected, got %s"):format(name, type(fn)), 2)
    end
  end
  return self:_on(callbacks)
end

function Task:_on(callbacks)
  local on = { on_partial = callbacks.on_partial, on_result = callbacks.on_result,
    on_error = callbacks.on_error, tell = tell }
  if self[1] ~= false then
    tell(self, on)
  else
    sched.add_watcher(self, on)
    if self._parts then tell(self, on) end
  end
  return self
end

function Task:__tostring()
  return ("threadpool.Task %d (%s)"):format(self.id, self:status())
end

Task._result = result
Task._is_done = is_done

return Task
