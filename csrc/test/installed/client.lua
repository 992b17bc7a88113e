-- client.lua - a client written from docs/BYTECODE.md: its declarations are read from there.
--
--   luajit client.lua BYTECODE.md
--
-- Prints nothing if all is as the document says.
local ffi = require("ffi")

local document = assert(io.open(arg[1])):read("*a")
local declarations = assert(document:match("```c\n(.-)```"), "no declarations in " .. arg[1])
ffi.cdef(declarations)
local tp = ffi.load("threadpool")

-- The table of result_t.
local rows = 0
for offset, field in document:gmatch("\n| (%d+) | [^|]+ | `([%w_]+)` |") do
  assert(ffi.offsetof("result_t", field) == tonumber(offset), field)
  rows = rows + 1
end
assert(rows == 8 and ffi.sizeof("result_t") == 304)
assert(tp.threadpool_abi() == tonumber(document:match("threadpool_abi%(void%); /%* (%d+) %*/")))

local pool = tp.threadpool_create(nil)
assert(pool ~= nil, ffi.string(tp.threadpool_last_error()))

-- More parts than the window holds: in order, numbered, then the final one.
local parts = {}
for i = 1, 100 do parts[i] = '"' .. i .. '"' end
local id = tp.threadpool_submit(pool, '{"op": "echo", "task_id": 7, "args": {"parts": [' .. table.concat(parts, ",") .. ']}}')
assert(id ~= 0 and id < 2ULL ^ 53)
for i = 0, 100 do
  local r = tp.threadpool_wait_result(pool, id, 5000)
  assert(r ~= nil and r.status == 0 and r.task_id == id and r.outer_id == 7 and r.sequence == i)
  assert(r.flags == (i < 100 and 2 or 1))
  assert(i == 100 or ffi.string(r.data, r.data_size) == tostring(i + 1))
  tp.threadpool_result_free(r)
end

-- It was fetched: an error, not nothing.
local r = tp.threadpool_poll_result(pool, id)
assert(r ~= nil and ffi.string(tp.threadpool_error_name(r.status)) == "ERR_INVALID_ARGUMENT")
tp.threadpool_result_free(r)

-- By the queue.
local requests, ids = ffi.new("threadpool_request[2]"), ffi.new("uint64_t[2]")
for i = 0, 1 do
  requests[i].json = '{"opcode": 8, "args": {}}'
  requests[i].deliver = 2
end
assert(tp.threadpool_event_fd(pool) >= 0)
assert(tp.threadpool_submit_batch(pool, requests, 2, ids) == 2)
local out, got = ffi.new("result_t *[2]"), 0
while got < 2 do
  local n = tonumber(tp.threadpool_completions(pool, out, 2))
  for i = 0, n - 1 do
    assert(out[i].status == 0 and ffi.string(out[i].data, out[i].data_size) == "{}")
    tp.threadpool_result_free(out[i])
  end
  got = got + n
end

-- Cancelled, and out of time.
id = tp.threadpool_submit(pool, '{"op": "sleep", "args": {"ms": 600000}}')
assert(tp.threadpool_wait_result(pool, id, 1) == nil)
assert(tp.threadpool_cancel(pool, id) == 1)
r = tp.threadpool_wait_result(pool, id, 5000)
assert(r ~= nil and ffi.string(tp.threadpool_error_name(r.status)) == "ERR_CANCELLED")
tp.threadpool_result_free(r)
id = tp.threadpool_submit(pool, '{"op": "sleep", "args": {"ms": 600000}, "timeout_ms": 1}')
r = tp.threadpool_wait_result(pool, id, 5000)
assert(r ~= nil and ffi.string(tp.threadpool_error_name(r.status)) == "ERR_TIMEOUT")
tp.threadpool_result_free(r)

assert(tp.threadpool_shutdown(pool) == 0)
assert(tp.threadpool_submit(pool, "{}") == 0)
