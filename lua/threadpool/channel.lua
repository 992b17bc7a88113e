---Bounded channels between the program's Lua thread and workers, and between workers.
---
---A value that is sent is copied, and received by exactly one receiver, in the order in which values were sent. A
---channel can be sent itself: as an argument, an upvalue, a result, through another channel. It is gone when nobody has
---it any more. A receiver that waits and is cancelled, or has no time left, gets nothing, and nothing is lost: what was
---meant for it goes to the next one, or back to the front.

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
--
-- It is in the channel only while somebody watches it: `_park` and `_unpark` are called by sched.lua with the first
-- watcher and after the last. Being told is not the end: the value stays the channel's until `take`, so that a task
-- which was told and is not looked at, as another one was first, gives it back.

---@class threadpool.ChannelTask: threadpool.Task
local Wait = {}
for name, value in pairs(Task) do Wait[name] = value end
Wait.__index = Wait

-- An index of their own among the handles: requests count from 0, these from the end; and an id that does not come
-- twice. An index is used again, but not soon, as a notice for one that was left may be on its way.
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

local function new_wait(channel, sends, value)
  return setmetatable({ false, false, id = 0, _channel = channel, _sends = sends, _value = value }, Wait)
end

local function finish(task, code, value)
  if code < 0 then
    task[1], task[2] = code, value and tostring(value) or core.error_text(code)
  else
    task[1], task[2] = 1, task._sends or value
  end
  task._value = nil
  return true
end

local function forget_wait(task)
  handles[task.id % INDEX] = nil
  task._wait = nil
end

---@return boolean  it is over at once
function Wait:_park()
  local id = next_id()
  local code, value
  if self._sends then code = send(self._channel, self._value, id)
  else code, value = receive(self._channel, id) end
  if type(code) == "number" then return finish(self, code, value) end
  self.id, self._wait = id, code
  handles[id % INDEX] = self
  return false
end

-- Whether it is over, now that it was perhaps told.
local function take(task)
  if task[1] ~= false then return true end
  if not task._wait then return false end
  local code, value = core.channel_take(task._wait)
  if code == ERR_BUSY then return false end
  forget_wait(task)
  return finish(task, code, value)
end
Wait._take = take

function Wait:_unpark()
  if not self._wait then return end
  if self._sends and take(self) then return end -- it was sent, and stays so
  leave(self._wait, false)
  forget_wait(self)
end

local result = Task._result

local function failed(code, message)
  if code == core.ERR_FORKED then
    return nil, Error.new(code, "the channel belongs to the parent of this process",
      { remedy = "make one in this process" })
  end
  return nil, Error.new(code, message)
end

---@see threadpool.Task.await
function Wait:await(seconds)
  if not sched.wait(take, self, { self }, seconds) then
    return failed(core.ERR_TIMEOUT, ("%s: nothing within %g s"):format(self._sends and "send" or "receive", seconds))
  end
  return result(self)
end

---@see threadpool.Task.wait
function Wait:wait(seconds)
  return sched.wait(take, self, { self }, seconds)
end

---Whether it is over; if it can be, it is.
---@return boolean
function Wait:poll()
  if take(self) then return true end
  if self._wait then
    sched.drain()
    return take(self)
  end
  local code, value
  if self._sends then code = send(self._channel, self._value, nil) else code, value = receive(self._channel, nil) end
  return code ~= ERR_BUSY and code ~= ERR_QUEUE_FULL and finish(self, code, value)
end

---It takes nothing any more, and ends with ERR_CANCELLED.
---@return boolean  false: it is over
function Wait:cancel()
  if take(self) then return false end
  self._asked = true
  if self._wait then
    leave(self._wait, false)
    forget_wait(self)
  end
  finish(self, core.ERR_CANCELLED)
  sched.tell_watchers(self)
  return true
end

Wait.detach = Wait.cancel

---@return "waiting"|"done"
function Wait:status()
  return self[1] == false and "waiting" or "done"
end

---@see threadpool.Task.on
function Wait:on(callbacks)
  if self:poll() or type(callbacks) ~= "table" then return Task.on(self, callbacks) end
  sched.add_watcher(self, { tell = function(task, watcher)
    if not take(task) then return end
    sched.remove_watcher(task, watcher)
    Task.on(task, callbacks)
  end })
  return self
end

function Wait:__tostring()
  return ("threadpool.ChannelTask (%s)"):format(self:status())
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
  local code = send(self, value, nil)
  if code == 0 then return true end
  if code ~= ERR_QUEUE_FULL then return failed(code) end
  return new_wait(self, true, value):await(seconds)
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
  local code, value = receive(self, nil)
  if code == 0 then return value end
  if code ~= ERR_BUSY then return failed(code, value) end
  return new_wait(self):await(seconds)
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

---The same as receive, as a task: for `first`, `all`, callbacks. It takes a value only while something waits for it, or
---when it is polled: one that was not the first, or is dropped, has taken nothing.
---@return threadpool.ChannelTask
function Channel:receive_task()
  return new_wait(self)
end

---The same as send, as a task: the value is sent while something waits for it, or when it is polled.
---@param value any  not nil
---@return threadpool.ChannelTask
function Channel:send_task(value)
  if value == nil then error("send_task: a value expected, got nil", 2) end
  return new_wait(self, true, value)
end

---Nothing is sent any more: who waits to send or to receive is told, as is whoever tries. Values that are in it can
---still be received.
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
