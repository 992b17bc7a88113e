-- status.lua - runs a program that polls for one result, and prints what the result was.
--
--   luajit status.lua PROGRAM
--
-- The program runs as it is: what it gets from ffi.load is the library, but each result it is given is read first. Its
-- declarations come first, so that of result_t below only completes the structure.
local ffi = require("ffi")
local load, cdef = ffi.load, ffi.cdef
local seen

local function complete()
  cdef[[
    struct result {
      uint64_t task_id;
      int32_t status;
      void *data;
      uint32_t data_size;
      char error_msg[256];
      uint32_t flags;
      uint64_t sequence;
      uint64_t outer_id;
    };
    const char *threadpool_error_name(int code);
  ]]
end

-- The program's own `require("ffi")` is this same table.
ffi.load = function(name)
  local library = load(name)
  complete()
  return setmetatable({
    threadpool_poll_result = function(pool, id)
      local result = library.threadpool_poll_result(pool, id)
      if result ~= nil then
        seen = {
          id = id,
          task_id = result.task_id,
          final = result.flags == 1,
          name = ffi.string(library.threadpool_error_name(result.status)),
          message = ffi.string(result.error_msg),
        }
      end
      return result
    end,
  }, { __index = library })
end

dofile(arg[1])
assert(seen, "the program ended without a result")
assert(seen.id ~= 0 and seen.task_id == seen.id and seen.final, "not the final result of what was submitted")
print(seen.name .. ": " .. seen.message)
