---Bounded channels between the program's Lua thread and workers, and between workers.
---
---A value that is sent is copied, and received by exactly one receiver, in the order in which values were sent. A channel
---can be sent itself: as an argument, an upvalue, a result, through another channel. It is gone when nobody has it any
---more. A value is with its receiver when `receive` returns it: one that waits and is cancelled, or has no time left, gets
---none, and nothing is lost.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local Task = require "threadpool.task"
local sched = require "threadpool.sched"

local send, receive, leave = core.channel_send, core.channel_receive, core.channel_leave
local setmetatable, type = setmetatable, type
local handles = sched.handles
local INDEX = core.INDEX
local ERR_QUEUE_FULL, ERR_BUSY = core.ERR_QUEUE_FULL, core.ERR_BUSY

local M = {}

---@class threadpool.Channel: userdata
local Channel = {}
local class = core.channel_class
class.__index = Channel
class.__metatable = "threadpool.channel"

-- --- what waits in a channel, as a task

---@class threadpool.ChannelTask: threadpool.Task
local Wait = {}
for name, value in pairs(Task) do Wait[name] = value end
Wait.__index = Wait

---Leave the channel: what it would have got goes to others. It ends with ERR_CANCELLED.
---@return boolean  false: it is over
function Wait:cancel()
  if self[1] ~= false then return false end
  return leave(self._wait, true)
end

---@return "waiting"|"done"
function Wait:status()
  return self[1] == false and "waiting" or "done"
end

---Leave the channel, and nobody is told.
function Wait:detach()
  if self[1] ~= false then return end
  leave(self._wait, false)
  handles[self.id % INDEX] = nil
  self[1], self[2] = core.ERR_CANCELLED, "detached"
end

function Wait:__tostring()
  return ("threadpool.ChannelTask (%s)"):format(self:status())
end

-- Their ids: an index that no request has, as those count from 0, and a number that does not come twice. Indices are
-- used again, but not soon, as a notice for one that was left may be on its way.
local range, cursor, serial = 1024, 0, 0

local function next_id()
  for _ = 1, 8 do
    cursor = cursor % range + 1
    if handles[INDEX - cursor] == nil then
      serial = serial + 1
      return serial * INDEX + (INDEX - cursor)
    end
  end
  range = range * 2
  return next_id()
end

local function waiting(id, wait)
  local task = setmetatable({ false, false, id = id, _wait = wait }, Wait)
  handles[INDEX - cursor] = task
  return task
end

local function over(n, value)
  return setmetatable({ n, value, id = 0 }, Wait)
end

-- --- results

local is_done, result = Task._is_done, Task._result

local function failed(code, message)
  return nil, Error.new(code, message)
end

---@param what string
local function finish(task, seconds, what)
  if not sched.wait(is_done, task, { task }, seconds) then
    task:detach()
    return failed(core.ERR_TIMEOUT, ("%s: nothing within %g s"):format(what, seconds))
  end
  return result(task)
end

local function check_seconds(seconds, name)
  if type(seconds) ~= "number" or seconds ~= seconds then
    error(name .. ": seconds expected, got " .. type(seconds), 3)
  end
  if seconds > 0 and not sched.timer then require "threadpool" end
end

-- --- channels

---A channel that holds up to n values.
---@param n integer  1 or more
---@return threadpool.Channel
function M.new(n)
  if type(n) ~= "number" or n ~= math.floor(n) or n < 1 or n > 2 ^ 31 then
    error("channel: expected how many values it holds, a whole number from 1 on, got " .. tostring(n), 2)
  end
  return core.channel_new(n)
end

---Send a value: anything that can be sent to a worker, but not nil. While the channel is full it waits.
---@param value any
---@param seconds? number  at most so long
---@return true? sent
---@return threadpool.Error? err  ERR_CLOSED, ERR_TIMEOUT: it was not sent
function Channel:send(value, seconds)
  if value == nil then error("send: a value expected, got nil", 2) end
  if seconds then
    check_seconds(seconds, "send")
    if seconds <= 0 then return self:try_send(value) end
  end
  local id = next_id()
  local code = send(self, value, id)
  if code == 0 then return true end
  if type(code) == "number" then return failed(code) end
  return finish(waiting(id, code), seconds, "send")
end

---Receive a value. While the channel is empty it waits.
---@param seconds? number  at most so long
---@return any value
---@return threadpool.Error? err  ERR_CLOSED: it is closed, and empty; ERR_TIMEOUT
function Channel:receive(seconds)
  if seconds then
    check_seconds(seconds, "receive")
    if seconds <= 0 then return self:try_receive() end
  end
  local id = next_id()
  local code, value = receive(self, id)
  if code == 0 then return value end
  if type(code) == "number" then return failed(code, value) end
  return finish(waiting(id, code), seconds, "receive")
end

---Send without waiting.
---@param value any  not nil
---@return true? sent
---@return threadpool.Error? err  ERR_TIMEOUT: it is full; ERR_CLOSED
function Channel:try_send(value)
  if value == nil then error("try_send: a value expected, got nil", 2) end
  local code = send(self, value, nil)
  if code == 0 then return true end
  if code == ERR_QUEUE_FULL then return failed(core.ERR_TIMEOUT, "the channel is full") end
  return failed(code)
end

---Receive without waiting.
---@return any value
---@return threadpool.Error? err  ERR_TIMEOUT: it is empty; ERR_CLOSED: and it will be
function Channel:try_receive()
  local code, value = receive(self, nil)
  if code == 0 then return value end
  if code == ERR_BUSY then return failed(core.ERR_TIMEOUT, "the channel is empty") end
  return failed(code, value)
end

---The same as receive, as a task: for `first`, `all`, callbacks. One that is dropped, cancelled or detached before its end
---takes nothing.
---@return threadpool.ChannelTask
function Channel:receive_task()
  local id = next_id()
  local code, value = receive(self, id)
  if code == 0 then return over(1, value) end
  if type(code) == "number" then return over(code, value or core.error_text(code)) end
  return waiting(id, code)
end

---The same as send, as a task.
---@param value any  not nil
---@return threadpool.ChannelTask
function Channel:send_task(value)
  if value == nil then error("send_task: a value expected, got nil", 2) end
  local id = next_id()
  local code = send(self, value, id)
  if code == 0 then return over(1, true) end
  if type(code) == "number" then return over(code, core.error_text(code)) end
  return waiting(id, code)
end

---Nothing is sent any more: who waits to send or to receive is told, as is whoever tries. Values that are in it can still
---be received.
---@return boolean  false: it was closed already
function Channel:close() return core.channel_close(self) end

---@return boolean
function Channel:is_closed() return core.channel_closed(self) end

---How many values are in it; the same as #channel.
---@return integer
function Channel:count() return core.channel_count(self) end

---How many it holds.
---@return integer
function Channel:limit() return core.channel_limit(self) end

local function next_value(channel)
  local value, err = channel:receive()
  if value == nil and err.code ~= core.ERR_CLOSED then error(err, 0) end
  return value
end

---for value in channel:values() do ... end, until it is closed and empty.
---@return fun(channel: threadpool.Channel): any, threadpool.Channel
function Channel:values() return next_value, self end

class.__len = Channel.count

function class:__tostring()
  return ("threadpool.Channel (%d of %d%s)"):format(self:count(), self:limit(), self:is_closed() and ", closed" or "")
end

---@param value any
---@return boolean
function M.is(value) return core.is_channel(value) end

return M
