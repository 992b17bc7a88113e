---How numbers of the FFI, and ctypes, travel between threads: what csrc/lua/codec.h asks for. Memory does not.

local ffi = require "ffi"

local typeof, tostring, type = ffi.typeof, tostring, type

local M = {}

local CALL = "call functions of C by their names on the other thread"

-- As tostring(ctype) writes them; `const` and `volatile` aside.
local scalars = {}
for _, name in ipairs { "bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int",
  "unsigned int", "int64_t", "uint64_t", "float", "double", "long double", "complex", "complex float" } do
  scalars[name] = true
end

---What is between `ctype<` and `>`.
---@param ctype ffi.ctype*
---@return string
local function name_of(ctype)
  return (tostring(ctype):match "^ctype<(.*)>$")
end
M.name_of = name_of

---Ctypes by their names.
local types = {}

---The ctype that has this name on this thread; raises.
---@param name string
---@return ffi.ctype*
local function type_of(name)
  local ctype = types[name]
  if not ctype then
    local ok, found = pcall(typeof, name)
    if not ok then
      error(("ctype<%s> is not known on this thread: declare it there with ffi.cdef, as in the pool's `init`")
        :format(name), 0)
    end
    ctype = found
    types[name] = ctype
  end
  return ctype
end
M.type_of = type_of

local boxes = {}

-- By name, not typeof("$[1]", ctype): busted replaces ffi.typeof by one that knows its first argument only.
local function box_of(name)
  local box = boxes[name]
  if not box then
    box = typeof(name .. "[1]")
    boxes[name] = box
  end
  return box()
end

---Why a ctype with this name is not to be had on another thread; nil: it may be.
---@param name string
---@return string?
function M.unnamed(name)
  local kind = name:match "%f[%w](%a+) %d"
  if kind == "struct" or kind == "union" or kind == "enum" then
    return ("ctype<%s> has no name: declare it as `%s name { ... }` with ffi.cdef"):format(name, kind)
  end
  if name:find("()", 1, true) then -- so LuaJIT writes it, whatever the arguments
    return ("ctype<%s> is of a function: %s"):format(name, CALL)
  end
end

local function refuse(name)
  local remedy = "pass the memory with threadpool.share, or in a region (pool:region)"
  if name:find("()", 1, true) then
    remedy = CALL
  elseif name:find "^enum " then
    remedy = "pass tonumber of it"
  end
  error(("ctype<%s> cannot be sent to another thread: %s"):format(name, remedy), 0)
end

---@param value ffi.cdata*|ffi.ctype*
---@return string name  of its ctype
---@return string? bytes  nil: it is the ctype that travels
function M.pack(value)
  local ctype = typeof(value)
  local name = name_of(ctype)
  if tostring(value) == tostring(ctype) then
    local why = M.unnamed(name)
    if why then error(why, 0) end
    return name
  end
  local plain = name:gsub("^const ", ""):gsub("^volatile ", "")
  if not scalars[plain] then refuse(name) end
  local box = box_of(plain)
  box[0] = value
  return plain, ffi.string(box, ffi.sizeof(box))
end

---@param name string
---@param bytes? string
---@return ffi.cdata*|ffi.ctype*
function M.unpack(name, bytes)
  local ctype = type_of(name)
  if not bytes then return ctype end
  local box = box_of(name)
  ffi.copy(box, bytes, ffi.sizeof(box))
  local value = box[0]
  return type(value) == "cdata" and value or ctype(value) -- small ones are read as plain numbers
end

return M
