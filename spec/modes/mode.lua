---What `make stress` changes about every Lua state, the program's and the workers'. TP_SPEC_MODE names it:
---
---  nojit      the interpreter only
---  collector  the collector never rests, and does ten times the work for each byte that is allocated
---
---The program's state gets it by LUA_INIT, those of the workers by spec/modes/threadpool/worker.lua.

if not jit then return end -- a tool for another Lua that was started with the same environment

local mode = os.getenv "TP_SPEC_MODE"
if mode == "nojit" then
  jit.off()
elseif mode == "collector" then
  collectgarbage("setpause", 0)
  collectgarbage("setstepmul", 1000) -- ten times as much again, and the specs take minutes
elseif mode then
  error("TP_SPEC_MODE: unknown mode '" .. mode .. "'")
end
