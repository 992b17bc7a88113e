---Who waits, and how: coroutines, the program's main thread, the tasks of a worker.
---
---A *root* drives coroutines: the program has one, and in a worker's state each task has one. What waits is a *waiter*:
---a coroutine (of ours, or of somebody else's driver), or a root, which stands for the code that runs in no coroutine of
---ours. Waking one puts it on the list of its root; the root runs what is on the list whenever it has the turn.
---
---  C1  A waiter that is woken looks again at what it waits for: it may be woken for another reason.
---  C2  Whoever waits is among the watchers of what it waits for before it gives the turn away, and results are looked
---      at only by who has the turn: so nothing is missed between.

local core = require "threadpool.core"
-- When the module is loaded again (busted does that) the tasks of the one before go on: results come to one place.
if core.sched then return core.sched end
local Error = require "threadpool.error"

local running = coroutine.running
local resume, yield, status = coroutine.resume, coroutine.yield, coroutine.status

local M = {}
core.sched = M

---Tasks by the index in their id, until their final result is there. A task that nobody has any more goes.
M.handles = setmetatable({}, { __mode = "v" })
---Those that something waits for: they stay.
M.kept = {}

local handles, kept = M.handles, M.kept
local INDEX = core.INDEX

local in_worker = core.FINISHED ~= nil
M.in_worker = in_worker

---@class threadpool.Root
---@field ready table      coroutines to be resumed, in order
---@field first integer
---@field last integer
---@field alive integer    coroutines of `go` that have not ended
---@field woken boolean    the root itself was woken
---@field call any         worker: the call it belongs to
---@field active thread|nil the coroutine of ours that has the turn

local function new_root(call)
  return { ready = {}, first = 1, last = 0, alive = 0, woken = false, call = call }
end

local main_root = new_root()
local roots = {}                                        -- worker: by call
M.started = roots
local root_of = setmetatable({}, { __mode = "k" })      -- of the coroutines of `go`
local bodies = setmetatable({}, { __mode = "k" })       -- worker: coroutines that run a task
M.bodies = bodies

local function current_root()
  if not in_worker then return main_root end
  local call = core.current()
  local root = roots[call]
  if not root then
    root = new_root(call)
    roots[call] = root
  end
  return root
end
M.current_root = current_root

---Worker: the call is over, perhaps in the middle of something: what it waited for may still know its root. `leaving`
---of that are functions that want to know.
function M.forget(call)
  local root = roots[call]
  if not root then return end
  roots[call] = nil
  root.call = nil
  if root.leaving then
    for leave in pairs(root.leaving) do leave() end
  end
end

---What was packed by reference for the task that is being spawned: threadpool.share.
M.anchors = {}

-- --- errors of coroutines and callbacks that nobody awaits

local function report(err)
  io.stderr:write("threadpool: ", tostring(err), "\n")
end

---What is called with (message with traceback) when a callback or a coroutine of `go` raises.
M.on_error = report

function M.raise_aside(err)
  local ok, why = pcall(M.on_error, err)
  if not ok then report(why) end
end

local function traceback_of(co, err)
  if type(err) == "string" or Error.is(err) then return debug.traceback(co, tostring(err)) end
  return debug.traceback(co, "error object: " .. tostring(err))
end

-- --- drivers of other people's coroutines

---How a coroutine that is not ours gives the turn away, and gets it back. Adapters set another one.
local driver = {
  suspend = function() yield() end,
  wake = function(co)
    local ok, err = resume(co)
    if not ok then M.raise_aside(traceback_of(co, err)) end
  end,
}

---@param new? { suspend: fun(), wake: fun(co: thread) }  nil: the plain one
function M.set_driver(new)
  M.driver = new or driver
end
M.driver = driver

-- --- waking

local function push(root, co)
  root.last = root.last + 1
  root.ready[root.last] = co
  root.woken = true
end

---Let a waiter look again.
local function wake(waiter)
  if type(waiter) == "thread" then
    local root = root_of[waiter]
    if not root then
      M.driver.wake(waiter)
      return
    end
    push(root, waiter)
    waiter = root
  end
  waiter.woken = true
  if waiter.call and waiter.call ~= core.current() then core.wake(waiter.call) end
end
M.wake = wake

-- One whose result was absorbed, and that is still to be told, may have been followed by another with its index.
local function let_go(task)
  local index = task.id % INDEX
  if kept[index] == task then kept[index] = nil end
end

local function add_watcher(task, waiter)
  local watch = task._watch
  if not watch then
    if task._park and task:_park() then -- it is over at once (channel.lua); who waits looks again
      if type(waiter) == "table" and waiter.tell then waiter.tell(task, waiter) end
      return
    end
    watch = {}
    task._watch = watch
    kept[task.id % INDEX] = task
  end
  watch[#watch + 1] = waiter
end
M.add_watcher = add_watcher

local function remove_watcher(task, waiter)
  local watch = task._watch
  if not watch then return end
  for i = #watch, 1, -1 do
    if watch[i] == waiter then table.remove(watch, i) end
  end
  if #watch == 0 then
    task._watch = nil
    let_go(task)
    if task._unpark then task:_unpark() end
  end
end
M.remove_watcher = remove_watcher

-- --- results

local out, out_count = {}, 0 -- tasks whose watchers are still to be told
local draining = false
local room_waiters = {}

---What there is goes to its tasks, and nobody is told yet: while a program submits without end, memory stays level.
function M.absorb()
  if not draining then out_count = core.drain(handles, kept, out, out_count) end
end

local function tell_watchers(task)
  local watch = task._watch
  if not watch then return end
  if task[1] then
    task._watch = nil
    let_go(task)
  end
  local copy = #watch > 1 and { unpack(watch) } or watch
  for k = 1, #copy do
    local w = copy[k]
    if type(w) == "table" and w.tell then w.tell(task, w) else wake(w) end
  end
end
M.tell_watchers = tell_watchers

---What there is goes to its tasks, and who watches them is told.
local function drain()
  if draining then return 0 end -- a callback that pumps: it is at it already
  draining = true
  local n = core.drain(handles, kept, out, out_count)
  out_count = 0
  for i = 1, n do
    local task = out[i]
    out[i] = nil
    tell_watchers(task)
  end
  draining = false
  if #room_waiters > 0 then
    local waiting = room_waiters
    room_waiters = {}
    for i = 1, #waiting do wake(waiting[i]) end
  end
  return n
end
M.drain = drain

-- --- coroutines of ours

local function step(root, co)
  if status(co) ~= "suspended" then return end
  local before = root.active
  root.active = co
  local ok, err = resume(co)
  root.active = before
  if status(co) == "dead" then
    root.alive = root.alive - 1
    root_of[co] = nil
    if not ok then M.raise_aside(traceback_of(co, err)) end
  end
end

---Resume what is ready now.
local function run_ready(root)
  local last = root.last
  while root.first <= last do
    local co = root.ready[root.first]
    if not co then break end -- one of them has pumped, and so run the rest
    root.ready[root.first] = nil
    root.first = root.first + 1
    step(root, co)
  end
  if root.first > root.last then root.first, root.last = 1, 0 end
end

---Start a coroutine; it begins when the one that runs gives the turn away.
---@param fn function
---@param ... any  its arguments
---@return thread
function M.go(fn, ...)
  if type(fn) ~= "function" then error("go: function expected, got " .. type(fn), 2) end
  local root = current_root()
  local n, args = select("#", ...), { ... }
  local co = coroutine.create(n == 0 and fn or function() return fn(unpack(args, 1, n)) end)
  root_of[co] = root
  root.alive = root.alive + 1
  push(root, co)
  return co
end

---Whether the code that runs now can give the turn away by yielding: it is a coroutine of ours, or of a driver.
local function who_waits(root)
  local co = running()
  if co and root_of[co] then return co end
  if in_worker then
    return bodies[co] and root or nil
  end
  if not co or (co and coroutine.isyieldable and not coroutine.isyieldable(co)) then return root end
  if root.active then return nil end -- a coroutine inside one of ours: what it yields goes to whoever resumed it
  return co
end

M.who_waits = who_waits

---By waiter: the innermost group that it is in (group.lua). What waits in one that has failed is told by an error.
M.group_of = setmetatable({}, { __mode = "k" })
local group_of = M.group_of

---The error that ends the waits of who is in this group; nil: none.
local function why_stopped(group)
  while group do
    if group.err then return group.err end
    group = group.outer
  end
end
M.why_stopped = why_stopped

---A root has nothing to run: wait until something comes.
local function idle(root, seconds)
  if in_worker then
    yield(core.WAITING)
    if root.stalled then
      for i = 1, #root.stalled do push(root, root.stalled[i]) end
      root.stalled = nil
    end
    return true
  end
  return core.wait(seconds) ~= 0
end
if jit then jit.off(idle) end

---Wait until done(a) is true; at most so many seconds (nil: for ever). Returns whether it is.
---@param done fun(a: any): boolean
---@param watched table[]  tasks, any of which may change that
---@param seconds? number
---@param shielded? boolean  also if its group has failed
local function wait(done, a, watched, seconds, shielded)
  if done(a) then return true end
  local root = current_root()
  local waiter = who_waits(root)
  local group = waiter and not shielded and group_of[waiter]
  if group then group.waits[waiter] = true end
  local deadline = seconds and core.now() + seconds
  local timer
  if deadline and (waiter ~= root or in_worker) then
    if not M.timer then require "threadpool" end -- which sets it; a worker may not have had it yet
    timer = M.timer(seconds)
  end
  if waiter then
    for i = 1, #watched do add_watcher(watched[i], waiter) end
    if timer then add_watcher(timer, waiter) end
  end
  local is_done = false
  while true do
    if done(a) then
      is_done = true
      break
    end
    if deadline and core.now() >= deadline then break end
    if group and why_stopped(group) then break end
    if waiter == root then
      root.woken = false
      drain()
      run_ready(root)
      if not root.woken and not done(a) then
        if root.first <= root.last then run_ready(root)
        elseif not deadline or core.now() < deadline then idle(root, deadline and deadline - core.now()) end
      end
    elseif waiter == nil then
      core.wait(deadline and deadline - core.now())
      drain()
    elseif root_of[waiter] then
      yield()
    else
      M.driver.suspend()
    end
  end
  if waiter then
    for i = 1, #watched do remove_watcher(watched[i], waiter) end
  end
  if timer then
    if waiter then remove_watcher(timer, waiter) end
    timer:cancel()
    timer:detach()
  end
  if group then
    group.waits[waiter] = nil
    local err = not is_done and why_stopped(group)
    if err then error(err, 0) end
  end
  return is_done
end
if jit then jit.off(wait) end
M.wait = wait

---Wait until some result has come: there may be room for another request then.
function M.wait_for_room()
  local root = current_root()
  local waiter = who_waits(root)
  if in_worker then
    core.nap(0.001)
    if waiter and waiter ~= root then
      push(root, waiter)
      yield()
    else
      yield(core.WAITING)
    end
  elseif waiter == root or waiter == nil then
    drain()
    run_ready(root)
    core.wait(0.01)
    drain()
  else
    room_waiters[#room_waiters + 1] = waiter
    if root_of[waiter] then yield() else M.driver.suspend() end
  end
end
if jit then jit.off(M.wait_for_room) end

---Worker: a full window; the task is polled again when there is room.
function M.wait_for_turn()
  local root = current_root()
  local waiter = who_waits(root)
  if waiter == root then
    yield(core.WAITING)
  elseif waiter then
    root.stalled = root.stalled or {}
    root.stalled[#root.stalled + 1] = waiter
    yield()
  else
    core.wait(0.001)
  end
end

---Deal with what has come, and let coroutines go on; with seconds, wait for something first.
---@param seconds? number
---@return boolean  whether there was something
function M.pump(seconds)
  local root = current_root()
  local n = drain()
  run_ready(root)
  if n == 0 and seconds and seconds > 0 and core.wait(seconds) == 1 then
    n = drain()
    run_ready(root)
    return true
  end
  return n > 0
end
if jit then jit.off(M.pump) end

local function all_ended(root)
  return root.alive == 0
end

---Run fn in a coroutine, and wait until it and all that it has started with `go` have ended.
---@param fn function
---@param ... any  its arguments
---@return any ...  what it returned; an error in it is raised
function M.run(fn, ...)
  if type(fn) ~= "function" then error("run: function expected, got " .. type(fn), 2) end
  local root = current_root()
  if root.active then error("run: it runs already: use go", 2) end
  local n, args = select("#", ...), { ... }
  local outcome
  M.go(function()
    local function pack(ok, ...) outcome = { ok, select("#", ...), ... } end
    pack(xpcall(function() return fn(unpack(args, 1, n)) end, function(err)
      if Error.is(err) or type(err) ~= "string" then return err end
      return debug.traceback(err, 2)
    end))
  end)
  wait(all_ended, root, {})
  if not outcome[1] then error(outcome[3], 0) end
  return unpack(outcome, 3, outcome[2] + 2)
end

---Worker: between two turns of a task, its coroutines that are ready, and those of its body.
M.run_ready = run_ready
M.all_ended = all_ended

return M
