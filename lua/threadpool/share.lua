---Memory without copies: `threadpool.share` for what the FFI has made, `pool:region` for memory that has a name in JSON
---requests too, `pool:for_range` for parallel loops over either.
---
---  H1  What is shared travels as an address. Whoever packs it puts it on sched.anchors, and the task that is made of
---      that spawn holds it until its final result has come (task.lua), whoever still has the task by then.
---  H2  So it can be given to tasks only: a result or a partial result has no task that could hold it.
---  H3  A region's name goes before its memory. If a request uses the region just then, both stay, and it is tried
---      again.

local core = require "threadpool.core"
local Error = require "threadpool.error"
local cdata = require "threadpool.cdata"
local chunks = require "threadpool.chunks"
local sched = require "threadpool.sched"
local ffi = require "ffi"

local getinfo, tostring, type = debug.getinfo, tostring, type
local name_of, type_of = cdata.name_of, cdata.type_of

local M = {}

-- --- sharing

---@class threadpool.Shared
---@field data ffi.cdata*
local Shared = {}
Shared.__index = Shared
Shared.__threadpool = "threadpool.share"

function Shared:__tostring()
  return ("threadpool.Shared (%s)"):format(tostring(self.data))
end

---The name of the pointer that a worker gets for memory of this type; nil and why not.
---@param name string
---@return string?, string?
local function pointer_name(name)
  local why = cdata.unnamed(name)
  if why then return nil, why end
  if name:find "%*$" then return name end
  local of = name:gsub(" %(&%)", ""):gsub(" &$", "")
  local element, more = of:match "^([^%[%(]-)%s*%[[^%]]*%](.*)$"
  if element then return more == "" and element .. " *" or element .. " (*)" .. more end
  local plain = of:gsub("^const ", "")
  if plain:find "^struct " or plain:find "^union " then return of .. " *" end
  if not of:find("(", 1, true) then
    return nil, ("ctype<%s> is a number, not memory: pass it as it is"):format(name)
  end
  return nil, ("ctype<%s> cannot be shared: pass a pointer to its first element"):format(name)
end

---The address, as a number: those of programs are below 2^53.
local function address_of(data)
  return tonumber(ffi.cast("uintptr_t", ffi.cast("const void *", data)))
end

local function share(data, level)
  if type(data) ~= "cdata" then
    error("share: memory of the FFI expected, got " .. (data == nil and "nil" or "a " .. type(data)), level + 1)
  end
  local ctype = ffi.typeof(data)
  local name = name_of(ctype)
  if tostring(data) == tostring(ctype) then
    error(("share: ctype<%s> is a ctype: pass it as it is"):format(name), level + 1)
  end
  local pointer, why = pointer_name(name)
  if not pointer then error("share: " .. why, level + 1) end
  if name:find "%*$" and data == nil then error("share: it is a NULL pointer", level + 1) end
  return setmetatable({ data = data, _pointer = pointer }, Shared)
end

---Let functions on workers use memory of the FFI instead of a copy: pass what this returns to spawn, map or for_range.
---The function gets a pointer to the first element (`float *` for a `float[?]`), to a structure, or the pointer that
---it is. Arrays and structures stay in memory until the tasks that got them have ended; what a pointer or a reference
---points to is the caller's to keep, as with the FFI everywhere: a worker that shares again what it got awaits those
---it gave it to. Who writes what when is the program's business.
---
---  local a = ffi.new("double[?]", 1000)
---  pool:spawn(function(a) a[0] = 1 end, threadpool.share(a)):await()
---
---@param data ffi.cdata*
---@return threadpool.Shared
function M.share(data)
  local shared = share(data, 2) -- no tail call: levels count this function
  return shared
end

---@param object threadpool.Shared|threadpool.Region
function M.pack(object)
  local data = object.data
  if data == nil then error(("the region '%s' is closed"):format(object.name), 0) end
  if getinfo(2, "f").func ~= core.spawn then -- H2
    error("shared memory can be given to tasks only: have them write to what was shared with them", 0)
  end
  local anchors = sched.anchors
  anchors[#anchors + 1] = object
  return object._pointer, address_of(data)
end

function M.unpack(pointer, address)
  return ffi.cast(type_of(pointer), ffi.cast("uintptr_t", address))
end

-- --- regions

---@class threadpool.Region
---@field name string
---@field data ffi.cdata*?  `ctype[?]`; nil when it is closed
---@field size integer      elements
---@field bytes integer
local Region = {}
Region.__index = Region
Region.__threadpool = "threadpool.share"

local busy = {} -- H3: { memory, handle, name } of regions that nobody has any more

local function unregister(handle, name)
  local C = require "threadpool.library"
  local symbols = C.threadpool_symbols(handle)
  if symbols == nil then return 0 end -- the pool is closed
  return C.symbol_unregister(symbols, name)
end

local function sweep()
  for i = #busy, 1, -1 do
    if unregister(busy[i][2], busy[i][3]) ~= core.ERR_BUSY then table.remove(busy, i) end
  end
end

local function check_size(size, element)
  if type(size) ~= "number" or size < 1 or size ~= math.floor(size) or size * element > 4294967295 then
    error(("region: size: a whole number expected, at least 1 and less than 4 GiB in all; got %s")
      :format(tostring(size)), 3)
  end
end

---Make memory that has a name: cdata here (`region.data`, all zeros), and a symbol in the requests of this pool. It can
---be given to functions on workers as it is. Keep the region as long as the memory is in use: it is closed when it is
---collected.
---
---  local region = pool:region("response_buffer", 4096)
---  pool:submit({ op = "write_memory", args = { write_to = "response_buffer", data = "Hello" } }):await()
---  print(region:string())
---
---@param pool threadpool.Pool
---@param name string             1 to 63 bytes
---@param size integer            elements
---@param ctype? string|ffi.ctype*  of an element; nil: bytes, `uint8_t`
---@return threadpool.Region? region
---@return threadpool.Error? err  ERR_BUSY: the name is taken; ERR_INVALID_ARGUMENT; ERR_MALLOC_FAILED; ERR_SHUTDOWN
function M.region(pool, name, size, ctype)
  if sched.in_worker then error("region: make it in the program, and pass it to the function", 2) end
  if type(name) ~= "string" then error("region: name: a string expected, got " .. type(name), 2) end
  local ok, element = pcall(ffi.typeof, ctype or "uint8_t")
  if not ok then error("region: ctype: " .. tostring(element), 2) end
  element = name_of(element)
  if element:find "[%[(]" then error(("region: ctype<%s>: expected the type of an element"):format(element), 2) end
  local pointer, why = pointer_name(element .. " [?]")
  if not pointer then error("region: " .. why, 2) end
  check_size(size, ffi.sizeof(element))
  sweep()
  local C = require "threadpool.library"
  local handle = pool:handle()
  local symbols = C.threadpool_symbols(handle)
  if symbols == nil then return nil, Error.new(core.ERR_SHUTDOWN) end
  local bytes = size * ffi.sizeof(element)
  local made, data = pcall(ffi.new, element .. "[?]", size)
  if not made then return nil, Error.new(core.ERR_MALLOC_FAILED, ("region '%s': %s"):format(name, tostring(data))) end
  local code = C.symbol_register(symbols, name, data, bytes)
  if code ~= 0 then return nil, Error.new(code, ffi.string(C.threadpool_last_error())) end
  local guard = newproxy(true)
  getmetatable(guard).__gc = function()
    if unregister(handle, name) == core.ERR_BUSY then busy[#busy + 1] = { data, handle, name } end
  end
  return setmetatable({ name = name, data = data, size = size, bytes = bytes, _pointer = pointer, _handle = handle,
    _guard = guard }, Region)
end

---What is in it, as a string.
---@param n? integer  so many bytes; nil: up to the first zero, or all
---@return string
function Region:string(n)
  local data = self.data
  if data == nil then error(("region '%s': it is closed"):format(self.name), 2) end
  if n == nil then
    local text = ffi.string(data, self.bytes)
    local zero = text:find("\0", 1, true)
    return zero and text:sub(1, zero - 1) or text
  end
  if type(n) ~= "number" or n < 0 or n > self.bytes then
    error(("region '%s': string: 0 to %d bytes expected, got %s"):format(self.name, self.bytes, tostring(n)), 2)
  end
  return ffi.string(data, n)
end

---Take the name back, and let the memory go when the tasks that have it have ended.
---@return boolean? closed        false: it was closed already
---@return threadpool.Error? err  ERR_BUSY: a request uses it just now
function Region:close()
  if self.data == nil then return false end
  local code = unregister(self._handle, self.name)
  if code == core.ERR_BUSY then
    return nil, Error.new(code, ("region '%s' is in use by a request"):format(self.name),
      { remedy = "close it when that has ended" })
  end
  getmetatable(self._guard).__gc = nil
  self.data, self._guard = nil, nil
  return true
end

function Region:__tostring()
  return ("threadpool.Region '%s' (%s)"):format(self.name, self.data and self.bytes .. " bytes" or "closed")
end

-- --- loops

local range_names = { "grain", "limit", "timeout", "priority" }

local function bound(value, what)
  if type(value) ~= "number" or value ~= math.floor(value) or math.abs(value) > 2 ^ 53 then
    error(("for_range: %s: a whole number expected, got %s"):format(what, tostring(value)), 3)
  end
  return value
end

---@class threadpool.Range
---@field [1] integer       first
---@field [2] integer       last, which is not among them
---@field grain? integer    the least size of a piece
---@field limit? integer    so many pieces at once; default: two for each worker
---@field timeout? number   seconds, for a piece
---@field priority? "high"|"normal"|"low"

---Run fn(begin, end, shared...) on workers for pieces that cover [0, n), or [first, last), exactly once. Ranges are
---half-open and begin with 0, as the arrays of the FFI do: `for i = begin, end - 1 do`. It returns when all pieces have
---ended. If one fails, those that have not begun are cancelled.
---
---  pool:for_range(n, function(begin, end_, a) for i = begin, end_ - 1 do a[i] = a[i] * 2 end end, a)
---
---@param pool threadpool.Pool
---@param range integer|threadpool.Range  n, or more
---@param fn fun(begin: integer, end_: integer, ...)
---@param ... any  arguments of fn; memory of the FFI is shared (`threadpool.share`), the rest copied
---@return boolean? ok
---@return threadpool.Error? err  of the first piece that failed
function M.for_range(pool, range, fn, ...)
  local first, last, options = 0, range, {}
  if type(range) == "table" then
    first, last, options = bound(range[1], "first"), bound(range[2], "last"), range
    for k in pairs(range) do
      if k ~= 1 and k ~= 2 then chunks.check_name("for_range", k, range_names, 2) end
    end
  else
    bound(range, "n")
  end
  if type(fn) ~= "function" then error("for_range: a function expected, got " .. type(fn), 2) end
  local n, args = select("#", ...), { ... }
  for i = 1, n do
    -- Numbers of the FFI travel by themselves.
    if type(args[i]) == "cdata" and pointer_name(name_of(ffi.typeof(args[i]))) then args[i] = share(args[i], 2) end
  end
  local job = chunks.new("for_range", pool, options, 2)
  local grain = options.grain
  if grain == nil then
    grain = math.max(1, math.floor((last - first) / (64 * job.workers)))
  else
    chunks.check_count("for_range", "grain", grain, 1, 2)
  end
  local at = first
  function job.next()
    if at >= last then return nil end
    local size = math.min(last - at, math.max(grain, math.ceil((last - at) / (2 * job.limit))))
    at = at + size
    return { first = at - size, n = size }
  end
  function job.spawn(piece)
    return job:send(core.spawn(pool._core, job.options, M._piece, fn, piece.first, piece.first + piece.n,
      unpack(args, 1, n)))
  end
  function job.take(_, task)
    if task[1] < 0 then job:stop(task:_error()) end
  end
  local err = job:run(true)
  if err then return nil, err end
  return true
end

-- What a worker runs; without upvalues, so that it is sent once.
function M._piece(fn, begin, end_, ...)
  fn(begin, end_, ...)
end

return M
