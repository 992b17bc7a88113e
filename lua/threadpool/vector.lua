--- Vectors and matrices of floats: dot, cosine, norms, the nearest rows, argmax.
--
-- The work is done by C kernels on the caller's memory, without copies; with a pool, large inputs are split among its
-- workers. The result is the same to the last bit, with a pool or without. Indices of rows and numbers are from 1;
-- pointers (m:row(i), m.data) are C's, from 0.
--
--   local vector = require "threadpool.vector"
--   local m = vector.matrix(10000, 768)
--   for i, embedding in ipairs(embeddings) do m:set(i, embedding) end
--   for _, hit in ipairs(m:top(query, 10, { metric = "cosine", pool = pool })) do
--     print(hit.index, hit.score)
--   end
--
-- Where a function takes a vector it may be a table of numbers, an FFI array of floats, or a matrix of one row; a
-- `float *` too, where its length is known otherwise. Misuse raises an error where the function was called. What may
-- fail at run time (no memory, the pool is closed) returns nil and an error.
local ffi = require "ffi"
local C = require "threadpool.library"

local ffi_istype, ffi_sizeof, ffi_typeof = ffi.istype, ffi.sizeof, ffi.typeof
local type, error, tonumber, tostring, pairs = type, error, tonumber, tostring, pairs
local min, floor = math.min, math.floor

local floats_t = ffi_typeof "float[?]"
local indices_t = ffi_typeof "int64_t[?]"
local pointer_t = ffi_typeof "const float *"
local matrix_t = ffi_typeof "threadpool_matrix"
local double_t = ffi_typeof "double[1]"
local int64_t = ffi_typeof "int64_t[1]"

local METRICS = {
  dot = C.THREADPOOL_DOT,
  cosine = C.THREADPOOL_COSINE,
  euclidean = C.THREADPOOL_EUCLIDEAN,
}

---@alias threadpool.floats number[]|ffi.cdata*|threadpool.Matrix  numbers, an FFI array of floats, a matrix of one row

---@class threadpool.VectorError
---@field code integer    negative, of threadpool_errors.h
---@field name string     "ERR_SHUTDOWN"
---@field message string  what was wrong
local VectorError = {}
VectorError.__index = VectorError
function VectorError:__tostring() return self.name .. ": " .. self.message end

---@class threadpool.Matrix
---@field rows integer
---@field dim integer         floats of a row
---@field stride integer      floats from one row to the next
---@field data ffi.cdata*     the memory; valid as long as the matrix is
---@field package _m ffi.cdata*
local Matrix = {}
Matrix.__index = Matrix

---@class threadpool.vector
local vector = {}

-- What is wrong with a call is said at its place: `level` is that of the function that calls these, seen from where
-- error() is called there.

local function describe(x)
  if type(x) == "cdata" then return tostring(ffi_typeof(x)) end -- first: a NULL pointer is nil to ==
  if x == nil then return "nil" end
  if type(x) == "number" then return tostring(x) end
  if getmetatable(x) == Matrix then return tostring(x) end
  return "a " .. type(x)
end

local function is_count(x, least)
  return type(x) == "number" and x >= least and x <= 2 ^ 53 and x == floor(x)
end

local function check_count(name, x, least, level)
  if is_count(x, least) then return end
  error(("%s is %s: expected an integer, %d or more"):format(name, describe(x), least), level + 1)
end

---A table of numbers as an FFI array.
local function from_table(name, t, level)
  local n = #t
  local a = floats_t(n)
  for i = 1, n do
    local x = t[i]
    if type(x) ~= "number" then
      error(("%s[%d] is %s: expected a number"):format(name, i, describe(x)), level + 1)
    end
    a[i - 1] = x
  end
  return a, n
end

---Floats in C's memory: themselves, and how many, or nil if it is not known.
local function from_cdata(name, x, level)
  if ffi_istype(floats_t, x) then return x, ffi_sizeof(x) / 4 end
  if ffi_istype(pointer_t, x) then
    if x == nil then error(name .. " is a NULL pointer", level + 1) end
    return x, nil
  end
  local of = tostring(ffi_typeof(x)):gsub("const ", "")
  if of:find "^ctype<float %[%d+%]>$" or of:find "^ctype<float %(&%)%[%d+%]>$" then
    return x, ffi_sizeof(x) / 4
  end
  error(("%s is %s: expected floats"):format(name, describe(x)), level + 1)
end

local function floats_of(name, x, level)
  local kind, a, n = type(x), nil, nil -- no tail calls: they would not count as a level
  if kind == "cdata" then
    a, n = from_cdata(name, x, level + 1)
  elseif kind == "table" and getmetatable(x) ~= Matrix then
    a, n = from_table(name, x, level + 1)
  elseif kind == "table" and x.rows == 1 then
    a, n = x.data, x.dim
  end
  if a then return a, n end
  error(
    ("%s is %s: expected a table of numbers, an FFI array of floats, or a matrix of one row"):format(
      name,
      describe(x)
    ),
    level + 1
  )
end

---Floats for a row of `dim`.
local function row_of(name, x, dim, level)
  local a, n = floats_of(name, x, level + 1)
  if n and n ~= dim then
    error(("%s has %d numbers: expected %d, the matrix's dim"):format(name, n, dim), level + 1)
  end
  return a
end

---Two vectors (or one, b nil), and how many floats of them are meant.
local function vectors_of(a, b, opts, two, level)
  local a_floats, a_n = floats_of("a", a, level + 1)
  local b_floats, b_n
  if two then
    b_floats, b_n = floats_of("b", b, level + 1)
  end
  local n = opts and opts.n
  if n == nil then
    n = a_n or b_n
    if n == nil then
      error("n is nil: expected how many floats there are, as a pointer does not say", level + 1)
    end
    if a_n and b_n and a_n ~= b_n then
      error(("a has %d numbers, b %d: expected as many"):format(a_n, b_n), level + 1)
    end
  end
  check_count("n", n, 0, level + 1)
  if a_n and a_n < n then error(("a has %d numbers: expected %d"):format(a_n, n), level + 1) end
  if b_n and b_n < n then error(("b has %d numbers: expected %d"):format(b_n, n), level + 1) end
  return a_floats, b_floats, n
end

local OF_VECTORS = { pool = true, n = true }
local OF_ROWS = { pool = true, out = true }
local OF_TOP = { pool = true, metric = true }
local OF_POOL = { pool = true }

---The pool's handle, NULL without one; all other options are looked at by the caller.
local function check_options(opts, known, level)
  if opts == nil then return nil end
  if type(opts) ~= "table" then
    error(("the options are %s: expected a table"):format(describe(opts)), level + 1)
  end
  for name in pairs(opts) do
    if not known[name] then
      local names = {}
      for each in pairs(known) do
        names[#names + 1] = each
      end
      table.sort(names)
      error(
        ("option %s is unknown: expected %s"):format(tostring(name), table.concat(names, ", ")),
        level + 1
      )
    end
  end
  local pool = opts.pool
  if pool == nil then return nil end
  local handle = type(pool) == "table" and (pool._pool or pool.handle and pool:handle())
  if not handle then
    error(("pool is %s: expected an open pool"):format(describe(pool)), level + 1)
  end
  return handle
end

local function failure(code)
  return setmetatable({
    code = code,
    name = ffi.string(C.threadpool_error_name(code)),
    message = ffi.string(C.threadpool_last_error()),
  }, VectorError)
end

-- --- matrices

local function new_matrix(data, rows, dim, stride)
  local m = matrix_t(ffi.cast("float *", data), rows, dim, stride)
  return setmetatable({ rows = rows, dim = dim, stride = stride, data = data, _m = m }, Matrix)
end

---A matrix of zeros, or of what a table of rows (tables of numbers, FFI arrays) holds. Its memory is LuaJIT's; for
---more than that may hold see vector.wrap.
---@param rows integer|threadpool.floats[]
---@param dim? integer  floats of a row
---@return threadpool.Matrix
function vector.matrix(rows, dim)
  if type(rows) == "table" then
    if dim ~= nil then
      check_count("dim", dim, 0, 2)
    elseif rows[1] ~= nil then
      local _, n = floats_of("row 1", rows[1], 2)
      if not n then error("dim is nil: expected a number, as a pointer does not say", 2) end
      dim = n
    end
    local n = #rows
    dim = dim or 0
    local data = floats_t(n * dim)
    for i = 1, n do
      local row = row_of("row " .. i, rows[i], dim, 2)
      ffi.copy(data + (i - 1) * dim, row, dim * 4)
    end
    return new_matrix(data, n, dim, dim)
  end
  check_count("rows", rows, 0, 2)
  check_count("dim", dim, 0, 2)
  if rows * dim >= 2 ^ 29 then
    error(("%d x %d floats are more than LuaJIT has memory for: see vector.wrap"):format(rows, dim), 2)
  end
  return new_matrix(floats_t(rows * dim), rows, dim, dim)
end

---A matrix on floats that are there already. Nothing is copied; they are kept from being collected as long as the
---matrix is there.
---@param data ffi.cdata*   an FFI array of floats, or a `float *`
---@param rows integer
---@param dim integer
---@param stride? integer   floats from one row to the next; dim if nil
---@return threadpool.Matrix
function vector.wrap(data, rows, dim, stride)
  if type(data) ~= "cdata" then
    error(("data is %s: expected an FFI array of floats, or a float *"):format(describe(data)), 2)
  end
  local floats, n = from_cdata("data", data, 2)
  check_count("rows", rows, 0, 2)
  check_count("dim", dim, 0, 2)
  if stride == nil then stride = dim end
  check_count("stride", stride, dim, 2)
  local needed = rows == 0 and 0 or (rows - 1) * stride + dim
  if n and n < needed then
    error(("data has %d floats: expected %d or more"):format(n, needed), 2)
  end
  return new_matrix(floats, rows, dim, stride)
end

local function check_row(m, i, level)
  if is_count(i, 1) and i <= m.rows then return end
  error(("row is %s: expected 1 to %d"):format(describe(i), m.rows), level + 1)
end

---Where row i begins. The pointer does not keep the matrix from being collected.
---@param i integer  from 1
---@return ffi.cdata*  `float *`, its floats are [0] to [dim - 1]
function Matrix:row(i)
  check_row(self, i, 2)
  return self._m.data + (i - 1) * self.stride
end

---Write row i.
---@param i integer  from 1
---@param values threadpool.floats  dim of them
---@return threadpool.Matrix self
function Matrix:set(i, values)
  check_row(self, i, 2)
  local from = row_of("the row", values, self.dim, 2)
  ffi.copy(self._m.data + (i - 1) * self.stride, from, self.dim * 4)
  return self
end

---A copy of row i.
---@param i integer  from 1
---@return number[]
function Matrix:get(i)
  check_row(self, i, 2)
  local row, t = self._m.data + (i - 1) * self.stride, {}
  for j = 1, self.dim do
    t[j] = row[j - 1]
  end
  return t
end

function Matrix:__tostring() return ("a matrix of %d x %d"):format(self.rows, self.dim) end

local function check_matrix(m, level)
  if getmetatable(m) == Matrix then return end
  error(("self is %s: expected a matrix, as of m:top(query, k)"):format(describe(m)), level + 1)
end

---Where one number for each row goes, and whether that is the caller's.
local function out_of(m, opts, level)
  local out = opts and opts.out
  if out == nil then return floats_t(m.rows), false end
  if type(out) ~= "cdata" or tostring(ffi_typeof(out)):find "const" then
    error(("out is %s: expected an FFI array of floats"):format(describe(out)), level + 1)
  end
  local floats, n = from_cdata("out", out, level + 1)
  if n and n < m.rows then
    error(("out has %d floats: expected %d, one for each row"):format(n, m.rows), level + 1)
  end
  return floats, true
end

local function finish(code, out, n, is_callers)
  if code ~= 0 then return nil, failure(code) end
  if is_callers then return out end
  local t = {}
  for i = 1, n do
    t[i] = out[i - 1]
  end
  return t
end

---Options of functions that give a number for each row.
---@class threadpool.RowOptions
---@field pool? table        split the rows among its workers
---@field out? ffi.cdata*    an FFI array of floats: the numbers go there, from [0], and it is returned

---The dot product of each row with the query.
---@param query threadpool.floats
---@param opts? threadpool.RowOptions
---@return number[]|ffi.cdata*|nil, threadpool.VectorError? err
function Matrix:dots(query, opts)
  check_matrix(self, 2)
  local pool = check_options(opts, OF_ROWS, 2)
  local q = row_of("the query", query, self.dim, 2)
  local out, is_callers = out_of(self, opts, 2)
  return finish(C.threadpool_vector_dots(pool, self._m, q, out), out, self.rows, is_callers)
end

---The cosine of the angle between each row and the query; 0 if one of them is all zeros.
---@param query threadpool.floats
---@param opts? threadpool.RowOptions
---@return number[]|ffi.cdata*|nil, threadpool.VectorError? err
function Matrix:cosines(query, opts)
  check_matrix(self, 2)
  local pool = check_options(opts, OF_ROWS, 2)
  local q = row_of("the query", query, self.dim, 2)
  local out, is_callers = out_of(self, opts, 2)
  return finish(C.threadpool_vector_cosines(pool, self._m, q, out), out, self.rows, is_callers)
end

---The length of each row.
---@param opts? threadpool.RowOptions
---@return number[]|ffi.cdata*|nil, threadpool.VectorError? err
function Matrix:norms(opts)
  check_matrix(self, 2)
  local pool = check_options(opts, OF_ROWS, 2)
  local out, is_callers = out_of(self, opts, 2)
  return finish(C.threadpool_vector_norms(pool, self._m, out), out, self.rows, is_callers)
end

---Divide each row by its length, in place. A row of zeros stays.
---@param opts? { pool?: table }
---@return threadpool.Matrix|nil self, threadpool.VectorError? err
function Matrix:normalise(opts)
  check_matrix(self, 2)
  local pool = check_options(opts, OF_POOL, 2)
  local code = C.threadpool_vector_normalise(pool, self._m)
  if code ~= 0 then return nil, failure(code) end
  return self
end

---@class threadpool.TopOptions
---@field metric? "cosine"|"dot"|"euclidean"  what makes a row the nearest; "cosine" if nil
---@field pool? table                         split the rows among its workers

---@class threadpool.Hit
---@field index integer  of the row, from 1
---@field score number   dot product, cosine, or the distance with a minus

---The k rows that are nearest to the query, best first; of equal ones the lower index first. Less than k if there are
---not so many; a row whose score is NaN is never one.
---@param query threadpool.floats
---@param k integer
---@param opts? threadpool.TopOptions
---@return threadpool.Hit[]|nil, threadpool.VectorError? err
function Matrix:top(query, k, opts)
  check_matrix(self, 2)
  local pool = check_options(opts, OF_TOP, 2)
  local q = row_of("the query", query, self.dim, 2)
  check_count("k", k, 1, 2)
  local name = opts and opts.metric
  if name == nil then name = "cosine" end
  local metric = METRICS[name]
  if not metric then
    local given = type(name) == "string" and ("%q"):format(name) or describe(name)
    error(("metric is %s: expected \"cosine\", \"dot\" or \"euclidean\""):format(given), 2)
  end
  local room = min(k, self.rows)
  local indices, scores, found = indices_t(room), floats_t(room), int64_t()
  local code = C.threadpool_vector_top(pool, self._m, q, k, metric, indices, scores, found)
  if code ~= 0 then return nil, failure(code) end
  local hits = {}
  for i = 0, tonumber(found[0]) - 1 do
    hits[i + 1] = { index = tonumber(indices[i]) + 1, score = scores[i] }
  end
  return hits
end

-- --- vectors

---@class threadpool.VectorOptions
---@field pool? table   split a long vector among its workers
---@field n? integer    only the first n floats; needed if only pointers are given

---The dot product.
---@param a threadpool.floats
---@param b threadpool.floats
---@param opts? threadpool.VectorOptions
---@return number|nil, threadpool.VectorError? err
function vector.dot(a, b, opts)
  local pool = check_options(opts, OF_VECTORS, 2)
  local x, y, n = vectors_of(a, b, opts, true, 2)
  local result = double_t()
  local code = C.threadpool_vector_dot(pool, x, y, n, result)
  if code ~= 0 then return nil, failure(code) end
  return result[0]
end

---The cosine of the angle between two vectors; 0 if one of them is all zeros.
---@param a threadpool.floats
---@param b threadpool.floats
---@param opts? threadpool.VectorOptions
---@return number|nil, threadpool.VectorError? err
function vector.cosine(a, b, opts)
  local pool = check_options(opts, OF_VECTORS, 2)
  local x, y, n = vectors_of(a, b, opts, true, 2)
  local result = double_t()
  local code = C.threadpool_vector_cosine(pool, x, y, n, result)
  if code ~= 0 then return nil, failure(code) end
  return result[0]
end

---The length of a vector.
---@param a threadpool.floats
---@param opts? threadpool.VectorOptions
---@return number|nil, threadpool.VectorError? err
function vector.norm(a, opts)
  local pool = check_options(opts, OF_VECTORS, 2)
  local x, _, n = vectors_of(a, nil, opts, false, 2)
  local result = double_t()
  local code = C.threadpool_vector_norm(pool, x, n, result)
  if code ~= 0 then return nil, failure(code) end
  return result[0]
end

---Where the largest number is, from 1, and the number; the lowest such index. nil if there is none but NaN.
---@param a threadpool.floats
---@param opts? threadpool.VectorOptions
---@return integer|nil index, number|threadpool.VectorError|nil value
function vector.argmax(a, opts)
  local pool = check_options(opts, OF_VECTORS, 2)
  local x, _, n = vectors_of(a, nil, opts, false, 2)
  local index = int64_t()
  local code = C.threadpool_vector_argmax(pool, x, n, index)
  if code ~= 0 then return nil, failure(code) end
  local i = tonumber(index[0])
  if i < 0 then return nil end
  return i + 1, x[i]
end

---Where the least number is, from 1, and the number; the lowest such index. nil if there is none but NaN.
---@param a threadpool.floats
---@param opts? threadpool.VectorOptions
---@return integer|nil index, number|threadpool.VectorError|nil value
function vector.argmin(a, opts)
  local pool = check_options(opts, OF_VECTORS, 2)
  local x, _, n = vectors_of(a, nil, opts, false, 2)
  local index = int64_t()
  local code = C.threadpool_vector_argmin(pool, x, n, index)
  if code ~= 0 then return nil, failure(code) end
  local i = tonumber(index[0])
  if i < 0 then return nil end
  return i + 1, x[i]
end

return vector
