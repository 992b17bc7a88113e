---The C library, for the FFI: `local C = require "threadpool.library"`, then `C.threadpool_abi()`. What there is:
---csrc/threadpool.h, as cdef.lua has it. Errors are raised when it is loaded: they say that files do not fit together.

local ffi = require "ffi"
require "threadpool.core" -- its own messages, if it is not to be found, come first
local cdef = require "threadpool.cdef"

-- A state keeps what it was told also when package.loaded is cleared, and is told nothing twice. Declared last, so that
-- it is there only if all of it is.
local told = ("struct threadpool_cdef_%d"):format(cdef.abi)

---The file that `require "threadpool.core"` has loaded; nil: somebody else has put it there.
local function find()
  return (package.searchpath("threadpool.core", package.cpath))
end

---@param path? string
local function open(path)
  local library = path and ffi.load(path) or ffi.C
  if not pcall(ffi.typeof, "struct threadpool_cdef_abi") then
    ffi.cdef "int threadpool_abi(void); struct threadpool_cdef_abi;"
  end
  local ok, abi = pcall(function() return library.threadpool_abi() end)
  if not ok then
    error(("threadpool: %s is no threadpool library: look at package.cpath"):format(path or "the program"), 0)
  end
  return library, abi
end

---@param abi integer  of the library that was loaded
local function check(path, abi)
  if abi == cdef.abi then return end
  local lua = debug.getinfo(1, "S").short_src:gsub("library%.lua$", "")
  error(("threadpool: the Lua files in %s are for version %d of the C interface, and %s has version %d: "
    .. "install both from the same release"):format(lua, cdef.abi, path or "the program", abi), 0)
end

local function declare()
  if pcall(ffi.typeof, told) then return end
  local ok, why = pcall(ffi.cdef, cdef.text .. told .. ";")
  if not ok then
    error("threadpool: the C declarations of the library cannot be made, as something of the same name is declared "
      .. "already by ffi.cdef: " .. tostring(why), 0)
  end
end

local path = find()
local library, abi = open(path)
check(path, abi)
declare()

return library
