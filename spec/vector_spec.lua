local ffi = require "ffi"
local C = require "threadpool.library"
local vector = require "threadpool.vector"

local pool

setup(function()
  pool = { _pool = C.threadpool_create_with(ffi.new("threadpool_options", { workers = 2 }), nil) }
  assert(pool._pool ~= nil, ffi.string(C.threadpool_last_error()))
end)

teardown(function() C.threadpool_shutdown(pool._pool) end)

local function floats(...)
  return ffi.new("float[?]", select("#", ...), ...)
end

local function near(expected, x)
  assert.is_true(math.abs(expected - x) < 1e-6, ("%.9g, expected %.9g"):format(x, expected))
end

-- More than is computed without the pool: rows of numbers from -1 to 1, the same ones every time.
local function large(rows, dim)
  local m, seed = vector.matrix(rows, dim), 1
  for i = 0, rows * dim - 1 do
    seed = (seed * 1664525 + 1013904223) % 4294967296
    m.data[i] = seed / 2147483648 - 1
  end
  return m
end

---Raises an error that is said to be on the line that called f, and names what is wrong.
local function misuse(message, f)
  local ok, err = pcall(f)
  assert.is_false(ok, "no error: " .. message)
  assert.truthy(err:find(message, 1, true), ("%q does not say %q"):format(err, message))
  local file, line = err:match "^(.-):(%d+): "
  local info = debug.getinfo(f, "S")
  assert.equal(info.short_src, file)
  line = tonumber(line)
  assert.is_true(line >= info.linedefined and line <= info.lastlinedefined, err)
end

describe("threadpool.vector", function()
  describe("of two vectors", function()
    it("computes the dot product, the cosine, the norm", function()
      assert.equal(32, vector.dot({ 1, 2, 3 }, { 4, 5, 6 }))
      assert.equal(5, vector.norm { 3, 4 })
      near(32 / math.sqrt(14 * 77), vector.cosine({ 1, 2, 3 }, { 4, 5, 6 }))
      assert.equal(1, vector.cosine({ 1, 2, 3 }, { 1, 2, 3 }))
      assert.equal(0, vector.cosine({ 1, 2, 3 }, { 0, 0, 0 }))
      assert.equal(0, vector.dot({}, {}))
    end)

    it("takes tables, FFI arrays of any kind, pointers, matrices of one row", function()
      local struct = ffi.new "struct { float a[3]; }"
      struct.a[0], struct.a[1], struct.a[2] = 1, 2, 3
      local array = floats(1, 2, 3)
      local kinds = {
        { 1, 2, 3 },
        array,
        ffi.new("float[3]", 1, 2, 3),
        ffi.new("const float[3]", 1, 2, 3),
        struct.a,
        ffi.cast("float *", array),
        ffi.cast("const float *", array),
        vector.matrix { { 1, 2, 3 } },
        vector.wrap(array, 1, 3),
      }
      for _, a in ipairs(kinds) do
        for _, b in ipairs(kinds) do
          assert.equal(14, vector.dot(a, b, { n = 3 }))
        end
        assert.equal(14, vector.dot(a, { 1, 2, 3 }))
        assert.equal(14, vector.matrix({ { 1, 2, 3 } }):dots(a)[1])
      end
    end)

    it("looks at the first n floats if told so", function()
      assert.equal(5, vector.norm({ 3, 4, 5 }, { n = 2 }))
      assert.equal(5, vector.norm(ffi.cast("float *", floats(3, 4, 5)), { n = 2 }))
    end)

    it("gives the same with a pool, to the last bit", function()
      local m = large(1, 300001)
      local a, b = m.data, m:row(1) + 1
      local n = 300000
      for _, name in ipairs { "dot", "cosine" } do
        assert.equal(vector[name](a, b, { n = n }), vector[name](a, b, { n = n, pool = pool }))
      end
      assert.equal(vector.norm(m), vector.norm(m, { pool = pool }))
    end)
  end)

  describe("argmax and argmin", function()
    it("give the lowest index, from 1, and the number", function()
      assert.same({ 2, 7 }, { vector.argmax { 3, 7, -1, 7 } })
      assert.same({ 3, -1 }, { vector.argmin { 3, 7, -1, 7, -1 } })
      assert.same({ 2, 7 }, { vector.argmax(floats(3, 7, -1)) })
    end)

    it("pass over NaN", function()
      assert.same({ 2, 1 }, { vector.argmax { 0 / 0, 1, 0 / 0, 0 } })
      assert.same({ 4, 0 }, { vector.argmin { 0 / 0, 1, 0 / 0, 0 } })
      assert.is_nil(vector.argmax { 0 / 0 })
      assert.is_nil(vector.argmin {})
    end)

    it("give the same with a pool", function()
      local m = large(1, 200000)
      m.data[123456], m.data[150000] = 2, 2
      assert.same({ 123457, 2 }, { vector.argmax(m, { pool = pool }) })
      assert.equal(vector.argmin(m), (vector.argmin(m, { pool = pool })))
    end)
  end)

  describe("a matrix", function()
    it("is made of zeros, of tables, of FFI arrays", function()
      local zeros = vector.matrix(2, 3)
      assert.same({ 2, 3, 3 }, { zeros.rows, zeros.dim, zeros.stride })
      assert.same({ 0, 0, 0 }, zeros:get(2))
      assert.equal("a matrix of 2 x 3", tostring(zeros))
      local m = vector.matrix { { 1, 2 }, floats(3, 4), vector.matrix { { 5, 6 } } }
      assert.same({ 3, 2 }, { m.rows, m.dim })
      assert.same({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, { m:get(1), m:get(2), m:get(3) })
      local none = vector.matrix {}
      assert.same({ 0, 0 }, { none.rows, none.dim })
      assert.same({ 0, 4 }, { vector.matrix({}, 4).rows, vector.matrix({}, 4).dim })
    end)

    it("wraps memory that is there, without a copy", function()
      local data = floats(1, 2, 9, 3, 4)
      local m = vector.wrap(data, 2, 2, 3)
      assert.same({ { 1, 2 }, { 3, 4 } }, { m:get(1), m:get(2) })
      data[0] = 7
      assert.same({ 7, 2 }, m:get(1))
      m:set(2, { 5, 6 })
      assert.same({ 9, 5, 6 }, { data[2], data[3], data[4] })
    end)

    it("keeps what it wraps from being collected", function()
      local m = vector.wrap(ffi.new("float[?]", 100000, 1), 1000, 100)
      for _ = 1, 20 do
        collectgarbage()
        ffi.new("float[?]", 100000, 2)
      end
      assert.equal(10, m:norms()[1000])
    end)

    it("gives pointers to its rows, and is written row by row", function()
      local m = vector.matrix(3, 2)
      assert.equal(m, m:set(2, { 1, 2 }))
      m:row(3)[1] = 5
      m:set(1, m:row(3))
      assert.same({ { 0, 5 }, { 1, 2 }, { 0, 5 } }, { m:get(1), m:get(2), m:get(3) })
    end)

    it("gives a number for each row", function()
      local m = vector.matrix { { 3, 4 }, { 0, 0 }, { -4, 3 } }
      assert.same({ 5, 0, 5 }, m:norms())
      assert.same({ 25, 0, 0 }, m:dots { 3, 4 })
      assert.same({ 1, 0, 0 }, m:cosines { 3, 4 })
    end)

    it("writes them to an array of the caller if told so", function()
      local m = vector.matrix { { 3, 4 }, { 0, 1 } }
      local out = floats(7, 7, 7)
      assert.equal(out, m:norms { out = out })
      assert.same({ 5, 1, 7 }, { out[0], out[1], out[2] })
      assert.equal(out, m:dots({ 1, 0 }, { out = out }))
      assert.same({ 3, 0 }, { out[0], out[1] })
      assert.equal(out, m:cosines({ 0, 1 }, { out = out }))
      assert.equal(1, out[1])
    end)

    it("is normalised in place", function()
      local m = vector.matrix { { 3, 4 }, { 0, 0 }, { 0, -2 } }
      assert.equal(m, m:normalise())
      near(0.6, m:get(1)[1])
      near(0.8, m:get(1)[2])
      assert.same({ 0, 0 }, m:get(2))
      assert.same({ 0, -1 }, m:get(3))
    end)

    it("gives the same with a pool, to the last bit", function()
      local m = large(2000, 65)
      local query = m:get(77)
      assert.same(m:dots(query), m:dots(query, { pool = pool }))
      assert.same(m:norms(), m:norms { pool = pool })
      assert.same(m:cosines(query), m:cosines(query, { pool = pool }))
      for _, metric in ipairs { "dot", "cosine", "euclidean" } do
        local alone = m:top(query, 20, { metric = metric })
        assert.same(alone, m:top(query, 20, { metric = metric, pool = pool }))
        assert.equal(77, alone[1].index)
      end
      local other = vector.wrap(ffi.new("float[?]", 2000 * 65), 2000, 65)
      ffi.copy(other.data, m.data, 2000 * 65 * 4)
      m:normalise()
      other:normalise { pool = pool }
      for i = 0, 2000 * 65 - 1 do
        if m.data[i] ~= other.data[i] then error("not the same at " .. i) end
      end
    end)
  end)

  describe("top", function()
    local m = vector.matrix { { 1, 0 }, { 0, 2 }, { 3, 0 }, { 1, 1 } }

    it("gives the nearest rows, best first", function()
      assert.same({ { index = 3, score = 3 }, { index = 1, score = 1 } }, m:top({ 1, 0 }, 2, { metric = "dot" }))
      assert.same(
        { { index = 1, score = 0 }, { index = 4, score = -1 }, { index = 3, score = -2 } },
        m:top({ 1, 0 }, 3, { metric = "euclidean" })
      )
    end)

    it("takes the cosine if not told otherwise, and the lower index of equal ones", function()
      local hits = m:top({ 1, 0 }, 3)
      assert.same(hits, m:top({ 1, 0 }, 3, { metric = "cosine" }))
      assert.same({ 1, 3, 4 }, { hits[1].index, hits[2].index, hits[3].index })
      assert.same({ 1, 1 }, { hits[1].score, hits[2].score })
      near(math.sqrt(0.5), hits[3].score)
    end)

    it("gives less than k if there are not so many", function()
      assert.equal(4, #m:top({ 1, 0 }, 100))
      assert.same({}, vector.matrix(0, 2):top({ 1, 0 }, 1))
      assert.same({}, vector.matrix({ { 0 / 0, 1 } }):top({ 1, 0 }, 1))
    end)

    it("never gives a row whose score is NaN", function()
      local hits = vector.matrix({ { 0 / 0, 1 }, { 1, 0 }, { 0, 0 / 0 } }):top({ 1, 0 }, 3)
      assert.same({ { index = 2, score = 1 } }, hits)
    end)

    it("is right when it is compiled", function()
      local data = large(50, 8)
      local first = data:top(data:row(9), 1)[1].index
      for _ = 1, 300 do
        assert(data:top(data:row(9), 1)[1].index == first)
        assert(vector.argmax(data:row(9), { n = 8 }) == vector.argmax(data:get(9)))
      end
      assert.equal(9, first)
    end)
  end)

  describe("misuse", function()
    local m = vector.matrix(2, 3)

    it("names a query that does not fit", function()
      misuse("the query has 2 numbers: expected 3, the matrix's dim", function() local _ = m:top({ 1, 2 }, 1) end)
      misuse("the query has 4 numbers: expected 3", function() local _ = m:dots(floats(1, 2, 3, 4)) end)
      misuse("the query[2] is a string: expected a number", function() local _ = m:cosines { 1, "x", 3 } end)
      misuse("the query is nil: expected a table of numbers", function() local _ = m:top(nil, 1) end)
      misuse("the query is a string: expected a table", function() local _ = m:dots "abc" end)
      misuse("the query is a matrix of 2 x 3: expected", function() local _ = m:dots(m) end)
      misuse("ctype<double [3]>: expected floats", function() local _ = m:dots(ffi.new "double[3]") end)
      misuse("ctype<void *>: expected floats", function() local _ = m:dots(ffi.new "void *") end)
      misuse("the query is a NULL pointer", function() local _ = m:dots(ffi.new "float *") end)
    end)

    it("names a number that is none, or out of range", function()
      misuse("k is 0: expected an integer, 1 or more", function() local _ = m:top({ 1, 2, 3 }, 0) end)
      misuse("k is 1.5: expected an integer", function() local _ = m:top({ 1, 2, 3 }, 1.5) end)
      misuse("k is nil: expected an integer", function() local _ = m:top { 1, 2, 3 } end)
      misuse("rows is -1: expected an integer, 0 or more", function() local _ = vector.matrix(-1, 3) end)
      misuse("rows is nil", function() local _ = vector.matrix() end)
      misuse("dim is nil", function() local _ = vector.matrix(3) end)
      misuse("see vector.wrap", function() local _ = vector.matrix(2 ^ 20, 2 ^ 20) end)
      misuse("row is 3: expected 1 to 2", function() local _ = m:row(3) end)
      misuse("row is 0: expected 1 to 2", function() local _ = m:set(0, { 1, 2, 3 }) end)
      misuse("row is a table: expected 1 to 2", function() local _ = m:get {} end)
    end)

    it("names an option", function()
      misuse('metric is "manhattan": expected "cosine"', function()
        local _ = m:top({ 1, 2, 3 }, 1, { metric = "manhattan" })
      end)
      misuse("option metrik is unknown: expected metric, pool", function()
        local _ = m:top({ 1, 2, 3 }, 1, { metrik = "dot" })
      end)
      misuse("the options are 7: expected a table", function() local _ = m:norms(7) end)
      misuse("pool is a table: expected an open pool", function() local _ = m:norms { pool = {} } end)
      misuse("pool is 3: expected an open pool", function() local _ = vector.norm({}, { pool = 3 }) end)
      misuse("out is a table: expected an FFI array", function() local _ = m:norms { out = {} } end)
      misuse("out has 1 floats: expected 2", function() local _ = m:norms { out = floats(1) } end)
      misuse("out is ctype<const float [2]>", function()
        local _ = m:norms { out = ffi.new("const float[2]") }
      end)
    end)

    it("names vectors that do not belong together", function()
      misuse("a has 2 numbers, b 3: expected as many", function() local _ = vector.dot({ 1, 2 }, { 1, 2, 3 }) end)
      misuse("a has 2 numbers: expected 3", function() local _ = vector.norm({ 1, 2 }, { n = 3 }) end)
      misuse("b has 2 numbers: expected 3", function()
        local _ = vector.dot({ 1, 2, 3 }, { 1, 2 }, { n = 3 })
      end)
      misuse("n is nil: expected how many", function() local _ = vector.norm(m:row(1)) end)
      misuse("n is -1", function() local _ = vector.argmax({ 1 }, { n = -1 }) end)
      misuse("b is nil: expected a table of numbers", function() local _ = vector.cosine { 1 } end)
    end)

    it("names what cannot be wrapped, or made a matrix", function()
      misuse("data is a table: expected an FFI array", function() local _ = vector.wrap({}, 1, 1) end)
      misuse("data has 5 floats: expected 6 or more", function() local _ = vector.wrap(floats(1, 2, 3, 4, 5), 2, 3) end)
      misuse("stride is 2: expected an integer, 3 or more", function()
        local _ = vector.wrap(floats(1, 2, 3, 4, 5, 6), 2, 3, 2)
      end)
      misuse("row 2 has 3 numbers: expected 2", function() local _ = vector.matrix { { 1, 2 }, { 1, 2, 3 } } end)
      misuse("row 1 is 5: expected a table", function() local _ = vector.matrix { 5, 6 } end)
      misuse("self is nil: expected a matrix", function() local _ = m.norms() end)
    end)
  end)

  it("takes a pool of the Lua module", function()
    local own = require("threadpool").new { workers = 2 }
    local m = large(2000, 65)
    assert.same(m:norms(), m:norms { pool = own })
    own:close()
    local norms, err = m:norms { pool = own }
    assert.is_nil(norms)
    assert.equal("ERR_SHUTDOWN", err.name)
  end)

  it("returns nil and an error when the pool is closed", function()
    local closed = { _pool = C.threadpool_create_with(ffi.new("threadpool_options", { workers = 1 }), nil) }
    C.threadpool_shutdown(closed._pool)
    local m = large(2000, 65)
    local calls = {
      function() return m:norms { pool = closed } end,
      function() return m:dots(m:row(1), { pool = closed }) end,
      function() return m:cosines(m:row(1), { pool = closed }) end,
      function() return m:normalise { pool = closed } end,
      function() return m:top(m:row(1), 1, { pool = closed }) end,
      function() return vector.norm(m.data, { pool = closed }) end,
      function() return vector.dot(m.data, m.data, { pool = closed }) end,
      function() return vector.cosine(m.data, m.data, { pool = closed }) end,
      function() return vector.argmax(m.data, { pool = closed }) end,
      function() return vector.argmin(m.data, { pool = closed }) end,
    }
    for _, call in ipairs(calls) do
      local result, err = call()
      assert.is_nil(result)
      assert.equal("ERR_SHUTDOWN", err.name)
      assert.equal(C.ERR_SHUTDOWN, err.code)
      assert.equal("ERR_SHUTDOWN: the pool is shutting down", tostring(err))
    end
  end)
end)
