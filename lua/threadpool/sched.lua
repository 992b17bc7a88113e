---Who waits, and how: coroutines, the program's main thread, the tasks of a worker.
---
---A *root* drives coroutines: the program has one, and in a worker's state each task has one. What waits is a
---*waiter*: a coroutine (of ours, or of somebody else's driver), or a root, which stands for the code that runs in no
---coroutine of ours. Waking one puts it on the list of its root; the root runs what is on the list whenever it has the
---turn.
---
---  C1  A waiter that is woken looks again at what it waits for: it may be woken for another reason.
---  C2  Whoever waits is among the watchers of what it waits for before it gives the turn away, and results are looked
---      at only by who has the turn: so nothing is missed between.

local core = require "threadpool.core"
-- When the module is loaded again (busted does that) the tasks of the one before go on: results come to one place.
if core.sched then return core.sched end
local Error = require "threadpool.error"
local deadlines = require "threadpool.deadlines"

local running = coroutine.running
local resume, yield, status = coroutine.resume, coroutine.yield, coroutine.status

local M = {}
core.sched = M

---Tasks by the index in their id, plus what their pool adds to it, until their final result is there. A task that
---nobody has any more goes.
M.handles = setmetatable({}, { __mode = "v" })
---Those that something waits for: they stay.
M.kept = {}

---Pools, as of the core, by what is added to the indexes of their tasks.
M.cores = setmetatable({}, { __mode = "v" })

local handles, kept, cores = M.handles, M.kept, M.cores

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
---@field stalled? thread[]  worker: coroutines that wait for room in the task's window
---@field deadlines? table   worker: when who is to be woken (in the program, a request `sleep` does that)

local function new_root(call)
  return { ready = {}, first = 1, last = 0, alive = 0, woken = false, call = call }
end

local main_root = new_root()
local roots = {}                                        -- worker: by call
M.started = roots
local root_of = setmetatable({}, { __mode = "k" })      -- of the coroutines of `go`
local scope_of = setmetatable({}, { __mode = "k" })     -- of those: which `run` they belong to
local queued = setmetatable({}, { __mode = "k" })       -- of those: whether they are in `ready`
local waiting = setmetatable({}, { __mode = "k" })      -- coroutines of others that wait here: the driver
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
---of that are functions that want to know. Its coroutines that wait for something are left to the collector.
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
M.report = report

---What is called with (message with traceback) when a callback or a coroutine of `go` raises.
M.on_error = report

---Ctrl-C: luajit's handler of SIGINT raises this, wherever the program is. It is to end the program, so it goes on from
---where nobody awaits it to whoever pumps.
local function is_interrupt(err)
  return type(err) == "string" and (err .. "\n"):find("interrupted!\n", 1, true) ~= nil
end

function M.raise_aside(err)
  if not in_worker and is_interrupt(err) then error(err, 0) end
  local ok, why = pcall(M.on_error, err)
  if not ok then report(why) end
end

local function traceback_of(co, err)
  if type(err) == "string" or Error.is(err) then return debug.traceback(co, tostring(err)) end
  return debug.traceback(co, "error object: " .. tostring(err))
end

-- --- drivers of other people's coroutines

---How coroutines that are not ours give the turn away, and get it back.
---@class threadpool.Driver
---@field owns fun(co: thread): boolean   whether this coroutine, which runs, is one of its own
---@field suspend fun(co: thread)         give the turn away; it may come back at any time
---@field wake fun(co: thread)            have it come back
---@field busy? fun(on: boolean)          whether anything waits on this thread has changed: while it does, pump is to
---                                       be called when the descriptor of the core is readable (but not by this)
---@field soon? fun()                     pump is to be called soon (but not by this)

local drivers = {} -- oldest first
local is_busy = false
local watched = 0 -- tasks in `kept`
local room_waiters = {}

---A coroutine that nobody drives is resumed by whoever pumps.
local plain = {
  suspend = function() yield() end,
  wake = function(co)
    local ok, err = resume(co)
    if not ok then M.raise_aside(traceback_of(co, err)) end
  end,
}

local function driver_of(co)
  for i = #drivers, 1, -1 do
    if drivers[i].owns(co) then return drivers[i] end
  end
  return plain
end

---Tell the drivers if something waits now and did not before, or the other way round.
local function look_busy()
  local busy = watched > 0 or #room_waiters > 0 or main_root.alive > 0
  if busy == is_busy then return end
  is_busy = busy
  for i = 1, #drivers do
    if drivers[i].busy then drivers[i].busy(busy) end
  end
end

---Whether anything waits on this thread.
---@return boolean
function M.busy()
  return is_busy
end

---@param driver threadpool.Driver
function M.add_driver(driver)
  drivers[#drivers + 1] = driver
  if is_busy and driver.busy then driver.busy(true) end
end

---@param driver threadpool.Driver
function M.remove_driver(driver)
  for i = #drivers, 1, -1 do
    if drivers[i] == driver then table.remove(drivers, i) end
  end
end

-- --- waking

local function push(root, co)
  if queued[co] then return end
  queued[co] = true
  if root == main_root and root.first > root.last then
    for i = 1, #drivers do
      if drivers[i].soon then drivers[i].soon() end
    end
  end
  root.last = root.last + 1
  root.ready[root.last] = co
  root.woken = true
end

---Let a waiter look again.
local function wake(waiter)
  if type(waiter) == "thread" then
    local root = root_of[waiter]
    if not root then
      -- One that waits no more has no need of it, and may have yielded for reasons of its own.
      local driver = waiting[waiter]
      if driver then
        local before = main_root.active
        main_root.active = nil -- it is not inside the one that runs
        driver.wake(waiter)
        main_root.active = before
      end
      return
    end
    push(root, waiter)
    waiter = root
  end
  waiter.woken = true
  if waiter.call and waiter.call ~= core.current() then core.wake(waiter.call) end
end
M.wake = wake

---What is yielded by who waits here. Whatever else a coroutine of ours yields means: others first.
local WAITS = {}

---Give the turn away; for waiters other than a root.
local function suspend(waiter)
  if root_of[waiter] then
    yield(WAITS)
    return
  end
  local driver = driver_of(waiter)
  waiting[waiter] = driver
  driver.suspend(waiter)
  waiting[waiter] = nil
end

local function keep(task)
  kept[task] = true
  watched = watched + 1
  if watched == 1 then look_busy() end
end

local function let_go(task)
  task._watch = nil
  kept[task] = nil
  watched = watched - 1
  if watched == 0 then look_busy() end
end

---@param task threadpool.Task  not done
---@param waiter thread|table  a waiter, or a table with a function `tell(task, waiter)`
local function add_watcher(task, waiter)
  local watch = task._watch
  if not watch then
    if task._park and task:_park() then -- it is over at once (channel.lua); who waits looks again
      if type(waiter) == "table" and waiter.tell then waiter.tell(task, waiter) end
      return
    end
    watch = {}
    task._watch = watch
    keep(task)
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
    let_go(task)
    if task._unpark then task:_unpark() end
  end
end
M.remove_watcher = remove_watcher

---Nobody is told of this task any more.
function M.remove_watchers(task)
  if task._watch then let_go(task) end
end

-- --- results

-- What the core has put there and is still to be dealt with is told + 1 to out_count: a task that is watched or has its
-- first partial result; or, of a partial result whose task nobody has any more, id and base of the pool.
local out, told, out_count = {}, 0, 0

---What there is goes to its tasks, and nobody is told yet: while a program submits without end, memory stays level.
function M.absorb()
  out_count = core.drain(handles, kept, out, out_count)
end

---A task that is dropped before its end must not keep its producer waiting for room: what is collected with the task
---tells that nobody reads any more.
local function guard(task)
  local proxy = newproxy(true)
  local pool, id = task._pool._core, task.id
  getmetatable(proxy).__gc = function() core.detach(pool, id) end
  task._guard = proxy
end

local function next_out()
  told = told + 1
  local what = out[told]
  out[told] = nil
  return what
end

local function tell_watchers(task)
  if task._parts and not task._guard and not task[1] then guard(task) end
  local watch = task._watch
  if not watch then return end
  if task[1] then let_go(task) end
  local copy = #watch > 1 and { unpack(watch) } or watch
  for i = 1, #copy do
    local w = copy[i]
    if type(w) == "table" and w.tell then w.tell(task, w) else wake(w) end
  end
end

M.tell_watchers = tell_watchers

---What there is goes to its tasks, and who watches them is told. A callback may get here again: then the rest is told
---there, and nothing is left when it returns.
---@return integer  how many were told
local function drain()
  out_count = core.drain(handles, kept, out, out_count)
  local n = 0
  while told < out_count do
    local task = next_out()
    if type(task) == "table" then
      n = n + 1
      tell_watchers(task)
    else
      local pool = cores[next_out()]
      if pool then core.detach(pool, task) end
    end
  end
  told, out_count = 0, 0
  if #room_waiters > 0 then
    local all = room_waiters
    room_waiters = {}
    for i = 1, #all do wake(all[i]) end
    look_busy()
  end
  return n
end
M.drain = drain

-- --- coroutines of ours

local function ended(root, co)
  local scope = scope_of[co]
  root.alive = root.alive - 1
  root_of[co], scope_of[co] = nil, nil
  if scope then
    scope.alive = scope.alive - 1
    if scope.alive == 0 and scope.waiter then wake(scope.waiter) end
  end
  if root.alive == 0 then look_busy() end
end

local function step(root, co)
  queued[co] = nil
  if status(co) ~= "suspended" then return end
  local before = root.active
  root.active = co
  local ok, what = resume(co)
  root.active = before
  if status(co) == "dead" then
    local scope = scope_of[co]
    ended(root, co)
    if ok then return end
    local fatal = not in_worker and is_interrupt(what)
    if scope and scope.body == co and not fatal then
      scope.err = type(what) == "string" and debug.traceback(co, what) or what
    else
      M.raise_aside(traceback_of(co, what))
    end
  elseif what ~= WAITS then
    push(root, co)
  end
end

---Resume what is ready now. A coroutine that pumps gets here again, so what was ready may be gone. Ctrl-C may have ended
---this between any two of its steps, in a program that goes on.
local function run_ready(root)
  local todo = root.last - root.first + 1
  while todo > 0 and root.first <= root.last do
    local co = root.ready[root.first]
    root.ready[root.first] = nil
    root.first = root.first + 1
    if root.first > root.last then root.first, root.last = 1, 0 end
    todo = todo - 1
    if co then step(root, co) end
  end
end

local function start(root, scope, co)
  root_of[co], scope_of[co] = root, scope
  root.alive = root.alive + 1
  if scope then scope.alive = scope.alive + 1 end
  push(root, co)
  if root.alive == 1 and root == main_root then look_busy() end
end

---Start a coroutine; it begins when the one that runs gives the turn away.
---@param fn function
---@param ... any  its arguments
---@return thread
function M.go(fn, ...)
  if type(fn) ~= "function" then error("go: function expected, got " .. type(fn), 2) end
  local n, args = select("#", ...), { ... }
  local co = coroutine.create(n == 0 and fn or function() return fn(unpack(args, 1, n)) end)
  local root = current_root()
  start(root, scope_of[root.active or false], co)
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

---Worker: give the turn away, until the task is woken or the earliest of its deadlines has come.
local function idle_worker(root)
  local at = root.deadlines and deadlines.earliest(root.deadlines)
  if at then core.nap(math.max(at - core.now(), 0)) end
  yield(core.WAITING)
  if at then
    local now = core.now()
    local waiter = deadlines.take(root.deadlines, now)
    while waiter do
      wake(waiter)
      waiter = deadlines.take(root.deadlines, now)
    end
  end
  if root.stalled then
    for i = 1, #root.stalled do push(root, root.stalled[i]) end
    root.stalled = nil
  end
end
if jit then jit.off(idle_worker) end

---Worker: run what is ready, then give the turn away.
local function turn(root)
  drain()
  run_ready(root)
  if root.first > root.last then idle_worker(root) else yield() end
end
if jit then jit.off(turn) end

---In the child of a fork: tasks of the parent's pools do not end here. They fail, before anybody waits for them.
local function fail_forked(tasks)
  for i = 1, #tasks do
    local task = tasks[i]
    local core_pool = task._pool and task._pool._core
    if task[1] == false and core_pool and core.forked(core_pool) then
      task[1], task[2] = core.ERR_FORKED, core.error_text(core.ERR_FORKED)
    end
  end
end

---Wait until done(a) is true; at most so many seconds (nil: for ever). Returns whether it is.
---@param done fun(a: any): boolean
---@param tasks table[]  tasks, any of which may change that
---@param seconds? number
---@param shielded? boolean  also if its group has failed
local function wait(done, a, tasks, seconds, shielded)
  if done(a) then return true end
  local root = current_root()
  local waiter = who_waits(root)
  local group = waiter and not shielded and group_of[waiter]
  if group then group.waits[waiter] = true end
  local deadline = seconds and core.now() + seconds
  local timer
  if deadline and waiter then
    if in_worker then
      root.deadlines = root.deadlines or deadlines.new()
      timer = deadlines.add(root.deadlines, deadline, waiter)
    elseif waiter ~= root then
      timer = M.timer(seconds)
      add_watcher(timer, waiter)
    end
  end
  fail_forked(tasks)
  if waiter then
    for i = 1, #tasks do add_watcher(tasks[i], waiter) end
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
        elseif in_worker then idle_worker(root)
        elseif not deadline or core.now() < deadline then core.wait(deadline and deadline - core.now()) end
      elseif in_worker and root.first <= root.last then
        yield() -- coroutines that only give others the turn: other tasks as well
      end
    elseif waiter == nil then
      core.wait(deadline and deadline - core.now())
      drain()
    else
      suspend(waiter)
    end
  end
  if waiter then
    for i = 1, #tasks do remove_watcher(tasks[i], waiter) end
  end
  if timer and in_worker then
    deadlines.remove(root.deadlines, timer)
  elseif timer then
    remove_watcher(timer, waiter)
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

local function never() return false end

---Wait so many seconds.
function M.sleep(seconds)
  if in_worker then
    wait(never, nil, {}, seconds)
  else
    local timer = M.timer(seconds)
    local ok, err = pcall(timer.await, timer)
    if ok then return end
    timer:cancel() -- a group was left
    timer:detach()
    error(err, 0)
  end
end

---Wait until some result has come: there may be room for another request then.
function M.wait_for_room()
  local root = current_root()
  local waiter = who_waits(root)
  if waiter == nil then
    core.wait(0.001)
    drain()
  elseif in_worker then
    root.deadlines = root.deadlines or deadlines.new()
    deadlines.add(root.deadlines, core.now() + 0.001, waiter)
    if waiter ~= root then suspend(waiter) else turn(root) end
  elseif waiter == root then
    drain()
    run_ready(root)
    core.wait(0.01)
    drain()
  else
    room_waiters[#room_waiters + 1] = waiter
    look_busy()
    suspend(waiter)
  end
end
if jit then jit.off(M.wait_for_room) end

---Worker: a full window; the task is polled again when there is room.
function M.wait_for_turn()
  local root = current_root()
  local waiter = who_waits(root)
  if waiter == root then
    turn(root)
  elseif waiter then
    root.stalled = root.stalled or {}
    root.stalled[#root.stalled + 1] = waiter
    suspend(waiter)
  else
    core.wait(0.001)
  end
end

---Deal with what has come, and let coroutines go on; with seconds, wait for something first.
---@param seconds? number
---@return boolean  whether there was something
function M.pump(seconds)
  if seconds ~= nil and type(seconds) ~= "number" then error("pump: seconds expected, got " .. type(seconds), 2) end
  local root = current_root()
  local some = (not in_worker and core.wait(0) == 1) or root.first <= root.last
  if drain() > 0 then some = true end
  run_ready(root)
  if not some and seconds and seconds > 0 and not in_worker then
    some = core.wait(seconds) == 1
    drain()
    run_ready(root)
  end
  return some
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
  local active = root.active
  if active and (status(active) == "suspended" or status(active) == "dead") then -- Ctrl-C came while it had the turn
    active, root.active = nil, nil
  end
  if active then error("run: it runs already: use go", 2) end
  local n, args = select("#", ...), { ... }
  local outcome
  local function keep_outcome(...) outcome = { select("#", ...), ... } end
  local scope = { alive = 0, waiter = who_waits(root) }
  scope.body = coroutine.create(function() keep_outcome(fn(unpack(args, 1, n))) end)
  start(root, scope, scope.body)
  wait(all_ended, scope, {})
  if not outcome then error(scope.err, 0) end
  return unpack(outcome, 2, outcome[1] + 1)
end
if jit then jit.off(M.run) end

---Worker: between two turns of a task, its coroutines that are ready, and those of its body.
M.run_ready = run_ready
M.all_ended = all_ended

return M
