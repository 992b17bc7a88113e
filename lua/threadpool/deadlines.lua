---Who is to be woken when: a heap, the earliest on top. Entries that are not needed any more stay until they are more
---than half of it.

local M = {}

local function up(heap, i)
  local entry = heap[i]
  while i > 1 do
    local parent = math.floor(i / 2)
    if heap[parent].at <= entry.at then break end
    heap[i] = heap[parent]
    i = parent
  end
  heap[i] = entry
end

local function down(heap, i)
  local entry, n = heap[i], #heap
  while 2 * i <= n do
    local child = 2 * i
    if child < n and heap[child + 1].at < heap[child].at then child = child + 1 end
    if entry.at <= heap[child].at then break end
    heap[i] = heap[child]
    i = child
  end
  heap[i] = entry
end

local function pop(heap)
  local n = #heap
  heap[1] = heap[n]
  heap[n] = nil
  if n > 2 then down(heap, 1) end
end

function M.new()
  return { gone = 0 }
end

---@param at number  seconds, as of core.now
---@return table entry
function M.add(heap, at, waiter)
  local entry = { at = at, waiter = waiter }
  heap[#heap + 1] = entry
  up(heap, #heap)
  return entry
end

function M.remove(heap, entry)
  if not entry.waiter then return end -- it was taken
  entry.waiter = nil
  heap.gone = heap.gone + 1
  if heap.gone <= 16 or heap.gone * 2 <= #heap then return end
  local n = 0
  for i = 1, #heap do
    local e = heap[i]
    heap[i] = nil
    if e.waiter then
      n = n + 1
      heap[n] = e
      up(heap, n)
    end
  end
  heap.gone = 0
end

---The earliest time; nil: there is none.
---@return number?
function M.earliest(heap)
  while heap[1] and not heap[1].waiter do
    pop(heap)
    heap.gone = heap.gone - 1
  end
  return heap[1] and heap[1].at
end

---A waiter whose time has come; nil: none, or no more.
function M.take(heap, now)
  local at = M.earliest(heap)
  if not at or at > now then return nil end
  local waiter = heap[1].waiter
  heap[1].waiter = nil
  pop(heap)
  return waiter
end

return M
