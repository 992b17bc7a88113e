---What went wrong with a task, as an object: `nil, err` is how every function here reports a failure at run time.
---It prints as one line; `err.traceback` says more.

local core = require "threadpool.core"

---@class threadpool.Error
---@field code integer       negative; the table is in docs/BYTECODE.md
---@field name string        "ERR_TIMEOUT"
---@field message string     what went wrong this time
---@field task_id? integer   the task it happened in
---@field value any          what a Lua function gave to `error`, if that was no string
---@field traceback? string  where, on the worker, and where it was submitted
---@field remedy? string     what to do about it
local Error = {}
Error.__index = Error
Error.__threadpool = "threadpool.error"

local remedies = {
  ERR_UNKNOWN_OPCODE = "see the operations in docs/BYTECODE.md, or register it",
  ERR_INVALID_JSON = "see the format of requests in docs/BYTECODE.md",
  ERR_SYMBOL_NOT_FOUND = "make the region first: pool:region(name, size)",
  ERR_MALLOC_FAILED = "free memory, or lower max_pending",
  ERR_HANDLER_CRASH = "the handler's code is at fault: run it under a debugger",
  ERR_TIMEOUT = "give it more time, or find out what it waits for",
  ERR_QUEUE_FULL = "await results before submitting more, or raise max_pending",
  ERR_SHUTDOWN = "make a new pool: threadpool.new()",
  ERR_FORKED = "make a pool of its own in this process",
}

---@param code integer
---@param message? string
---@param fields? table
---@return threadpool.Error
function Error.new(code, message, fields)
  local err = fields or {}
  err.code = code
  err.name = core.error_name(code)
  err.message = message and message ~= "" and message or core.error_text(code)
  err.remedy = err.remedy or remedies[err.name]
  return setmetatable(err, Error)
end

function Error:__tostring()
  local text = self.name .. ": " .. self.message
  if self.remedy and not text:find(self.remedy, 1, true) then
    text = text .. " (" .. self.remedy .. ")"
  end
  return text
end

---@param err any
---@return boolean
function Error.is(err)
  return getmetatable(err) == Error
end

-- How one travels between threads (csrc/lua/codec.h).
function Error.pack(err)
  return { code = err.code, message = err.message, task_id = err.task_id, value = err.value,
    traceback = err.traceback, remedy = err.remedy }
end

function Error.unpack(fields)
  return Error.new(fields.code, fields.message, fields)
end

return Error
