local ffi = require("ffi")
ffi.cdef[[
    typedef struct threadpool threadpool_t;
    typedef struct result result_t;

    threadpool_t* threadpool_create(const char* config_path);
    void threadpool_shutdown(threadpool_t* pool);
    uint64_t threadpool_submit(threadpool_t* pool, const char* json);
    result_t* threadpool_poll_result(threadpool_t* pool, uint64_t task_id);
    void threadpool_result_free(result_t* result);
]]

local tp = ffi.load("threadpool")
local pool = tp.threadpool_create("config/config")

local task_id = tp.threadpool_submit(pool, '{"opcode": 1, "args": {...}}')

-- Poll in main loop
while true do
    local result = tp.threadpool_poll_result(pool, task_id)
    if result ~= nil then
        -- Process result
        tp.threadpool_result_free(result)
        break
    end
    -- Do other work...
end
