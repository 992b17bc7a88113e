-- luacheck: std +busted
local ffi = require("ffi")
local json = require("threadpool.json")

local encode, decode, null, array = json.encode, json.decode, json.null, json.array

-- What `f` raises, without the position.
local function raised(f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  return (message:gsub("^%S+:%d+: ", ""))
end

local function refused(text)
  local value, message = decode(text)
  assert.is_nil(value)
  assert.is_string(message)
  return message
end

-- Equal bit for bit, -0 too.
local function assert_number(n, text)
  if text then assert.equal(text, encode(n)) end
  local back = decode(encode(n))
  assert.equal(n, back)
  assert.equal(1 / n, 1 / back)
end

local function nested(levels, open, close)
  return open:rep(levels) .. close:rep(levels)
end

describe("encode", function()
  it("writes nil, booleans and null", function()
    assert.equal("null", encode(nil))
    assert.equal("null", encode(null))
    assert.equal("true", encode(true))
    assert.equal("false", encode(false))
    assert.equal('{"a":null}', encode { a = null })
  end)

  it("wants a value, even if it is nil", function()
    assert.matches("value expected", raised(encode))
  end)

  it("writes whole numbers up to 2^53 without exponent or point", function()
    for text, n in pairs {
      ["0"] = 0, ["7"] = 7, ["-1"] = -1, ["1000000"] = 1e6, ["1000000000000000"] = 1e15,
      ["9007199254740991"] = 2 ^ 53 - 1, ["9007199254740992"] = 2 ^ 53,
      ["-9007199254740992"] = -2 ^ 53,
    } do
      assert_number(n, text)
    end
  end)

  it("writes every other number so that it is read as the same one", function()
    assert_number(-0.0, "-0.0")
    assert_number(0.1, "0.1")
    assert_number(1.5, "1.5")
    assert_number(-1 / 3)
    assert_number(2 ^ 53 + 2, "9007199254740994")
    assert_number(2 ^ 63)
    assert_number(2 ^ 64)
    assert_number(1e20)
    assert_number(1e21)
    assert_number(1e308)
    assert_number(1.7976931348623157e308)
    assert_number(2.2250738585072014e-308)
    assert_number(4.9406564584124654e-324)
    assert_number(2 ^ -1060)
    local bits = ffi.new("union { uint32_t word[2]; double number; }")
    for _ = 1, 20000 do
      bits.word[0], bits.word[1] = math.random(0, 2 ^ 32 - 1), math.random(0, 2 ^ 32 - 1)
      -- Not one that is none: what LuaJIT reads there then may be any value of its own.
      if bit.band(bits.word[1], 0x7FF00000) ~= 0x7FF00000 then assert_number(tonumber(bits.number)) end
    end
  end)

  it("refuses what is no number of JSON", function()
    assert.equal("inf cannot be written as JSON", raised(encode, math.huge))
    assert.equal("-inf cannot be written as JSON", raised(encode, -math.huge))
    assert.equal("x[1]: nan cannot be written as JSON", raised(encode, { x = { 0 / 0 } }))
  end)

  it("writes 64-bit integers exactly", function()
    assert.equal("9223372036854775807", encode(0x7fffffffffffffffLL))
    assert.equal("-9223372036854775808", encode(-0x7fffffffffffffffLL - 1))
    assert.equal("18446744073709551615", encode(-1ULL))
    assert.equal('[0,{"a":1}]', encode { 0LL, { a = ffi.new("uint64_t", 1) } })
  end)

  it("refuses other cdata, whatever their __tostring says", function()
    local message = "a cdata that is no int64_t or uint64_t cannot be written as JSON"
    local S = ffi.metatype("struct { int x; }", { __tostring = function() return "123LL" end })
    assert.equal(message, raised(encode, S()))
    assert.equal(message, raised(encode, ffi.new("int32_t", 5)))
    assert.equal(message, raised(encode, ffi.new("void *")))
    assert.equal("a: " .. message, raised(encode, { a = ffi.new("int64_t[2]") }))
  end)

  it("escapes quotes, backslashes and control characters, nothing else of ASCII", function()
    local short = { [8] = "\\b", [9] = "\\t", [10] = "\\n", [12] = "\\f", [13] = "\\r",
      [34] = '\\"', [92] = "\\\\" }
    for c = 0, 127 do
      local char = string.char(c)
      local expected = short[c] or (c < 32 and ("\\u%04x"):format(c)) or char
      -- At each place of the eight bytes that are looked at together.
      for before = 0, 17 do
        local s = ("a"):rep(before) .. char .. ("b"):rep(17 - before)
        local text = '"' .. ("a"):rep(before) .. expected .. ("b"):rep(17 - before) .. '"'
        assert.equal(text, encode(s))
        assert.equal(s, decode(text))
      end
    end
  end)

  it("writes valid UTF-8 as it is", function()
    for _, s in ipairs {
      "\194\128", "\223\191", "\224\160\128", "\237\159\191", "\238\128\128", "\239\191\191",
      "\240\144\128\128", "\244\143\191\191", "\226\128\168", "Grüße, Привет, 你好, 👍",
    } do
      for before = 0, 9 do
        local text = ("x"):rep(before) .. s .. s .. "y"
        assert.equal('"' .. text .. '"', encode(text))
        assert.equal(text, decode(encode(text)))
      end
    end
  end)

  it("replaces each byte that is no UTF-8 by U+FFFD", function()
    local r = "\239\191\189"
    for s, text in pairs {
      ["\128"] = r, ["\191"] = r, ["\255"] = r, ["\254"] = r,
      ["\192\128"] = r .. r, ["\193\191"] = r .. r, -- overlong
      ["\224\159\191"] = r .. r .. r, ["\240\143\191\191"] = r .. r .. r .. r,
      ["\237\160\128"] = r .. r .. r, ["\237\191\191"] = r .. r .. r, -- surrogates
      ["\244\144\128\128"] = r .. r .. r .. r, ["\245\128\128\128"] = r .. r .. r .. r,
      ["\195"] = r, ["\226\130"] = r .. r, ["\240\159\145"] = r .. r .. r, -- cut off
      ["\195a"] = r .. "a", ["\226\130a"] = r .. r .. "a", ["\195\195\164"] = r .. "ä",
    } do
      for before = 0, 9 do
        local a = ("a"):rep(before)
        assert.equal('"' .. a .. text .. '"', encode(a .. s))
        assert.equal('{"' .. a .. text .. '":1}', encode { [a .. s] = 1 })
      end
    end
  end)

  it("makes valid JSON of any bytes", function()
    for _ = 1, 3000 do
      local bytes = {}
      for i = 1, math.random(0, 40) do bytes[i] = string.char(math.random(0, 255)) end
      local s = table.concat(bytes)
      local back = decode(encode(s))
      assert.is_string(back)
      assert.equal(back, decode(encode(back)))
    end
  end)

  it("keeps long strings and their zeros", function()
    local zeros = ("\0"):rep(5000)
    assert.equal('"' .. ("\\u0000"):rep(5000) .. '"', encode(zeros))
    assert.equal(zeros, decode(encode(zeros)))
    local long = ("0123456789abcde\n"):rep(65536)
    assert.equal(long, decode(encode(long)))
    assert.same({ [long] = { long } }, decode(encode { [long] = { long } }))
  end)

  it("writes the keys 1 to n as an array, in whatever order the table has them", function()
    assert.equal("[1]", encode { 1 })
    assert.equal('["a",["b",[]]]', encode { "a", { "b", array {} } })
    assert.equal("[1,2,3]", encode { [3] = 3, [2] = 2, [1] = 1 })
    for n = 1, 40 do
      local order, t, expected = {}, {}, {}
      for i = 1, n do order[i] = i end
      for i = n, 2, -1 do
        local k = math.random(i)
        order[i], order[k] = order[k], order[i]
      end
      for i = 1, n do
        t[order[i]] = { order[i] }
        expected[i] = "[" .. i .. "]"
      end
      assert.equal("[" .. table.concat(expected, ",") .. "]", encode(t))
    end
  end)

  it("writes an empty table as an object, unless it was marked as an array", function()
    assert.equal("{}", encode {})
    assert.equal("[]", encode(array {}))
    assert.equal("[]", encode(array()))
    assert.equal('{"a":[]}', encode { a = decode("[]") })
    assert.equal("{}", encode(decode("{}")))
    assert.equal("[1]", encode(array { 1 }))
    assert.equal("{}", encode(setmetatable({}, {})))
    local t = {}
    assert.equal(t, array(t))
    assert.equal(t, array(t)) -- twice is fine
  end)

  it("calls no metamethod", function()
    local never = function() error("called") end
    local t = setmetatable({ a = 1 }, { __index = never, __pairs = never, __len = never,
      __tostring = never, __tojson = never })
    assert.equal('{"a":1}', encode(t))
    assert.matches("it has a metatable already", raised(array, t))
    assert.matches("table expected", raised(array, 1))
  end)

  it("writes what a table holds in several places as often", function()
    local t = { 1 }
    assert.equal("[[1],[1],[[1]]]", encode { t, t, { t } })
  end)

  it("names the place of what cannot be written", function()
    local none = " cannot be written as JSON"
    assert.equal("a function" .. none, raised(encode, print))
    assert.equal("args.headers[2]: a function" .. none,
      raised(encode, { args = { headers = { 1, print } } }))
    assert.equal("[1].x: a thread" .. none, raised(encode, { { x = coroutine.create(print) } }))
    assert.equal("file: a userdata" .. none, raised(encode, { file = io.stdout }))
    assert.equal('["a \\"b\\"\\u000a"].c[1]: a function' .. none,
      raised(encode, { ['a "b"\n'] = { c = { print } } }))
    assert.equal("[3]: a function" .. none, raised(encode, { [3] = print, [2] = 2, [1] = 1 }))
    assert.equal('[""]: a function' .. none, raised(encode, { [""] = print }))
    local long = ("k"):rep(50)
    local message = raised(encode, { [long] = { [long] = { [long] = { [long] = { [long] =
      { [long] = { ["end"] = print } } } } } } })
    assert.matches("^%.%.%.%.kkk.*%.end: a function", message)
    assert.is_true(#message < 300)
  end)

  it("says where it was called", function()
    local ok, message = pcall(function()
      local text = encode { print }
      return text
    end)
    assert.is_false(ok)
    assert.matches("json_spec%.lua:%d+: %[1%]: a function", message)
  end)

  it("refuses holes, and says what to do", function()
    assert.equal("a: element 2 is nil, but there are later ones: write json.null there",
      raised(encode, { a = { 1, nil, 3 } }))
    assert.matches("^element 1 is nil", raised(encode, { nil, 2 }))
    assert.matches("^element 1 is nil", raised(encode, { [2 ^ 52] = 1 }))
    assert.matches("^element 1 is nil", raised(encode, { [math.huge] = 1 }))
    assert.equal("[1,null,3]", encode { 1, null, 3 })
  end)

  it("refuses tables with keys that are not of one kind, and names one", function()
    assert.equal("a.name: a string as key beside numbers: a table is written as an array " ..
      "(keys 1 to n) or as an object", raised(encode, { a = { 1, name = 2 } }))
    assert.matches("as key beside", raised(encode, { 1, 2, x = 3 }))
    assert.matches("as key beside", raised(encode, { x = 1, [2] = 2 }))
    local no_key = "no key of an array: these are 1 to n; an object has strings as keys"
    assert.equal("[0]: " .. no_key, raised(encode, { [0] = 1 }))
    assert.equal("[-1]: " .. no_key, raised(encode, { [-1] = 1 }))
    assert.equal("[1.5]: " .. no_key, raised(encode, { 1, [1.5] = 1 }))
    assert.equal("[-inf]: " .. no_key, raised(encode, { [-math.huge] = 1 }))
    assert.equal("a: a key that is a boolean cannot be written as JSON",
      raised(encode, { a = { [true] = 1 } }))
    assert.equal("a key that is a table cannot be written as JSON", raised(encode, { 1, [{}] = 1 }))
    assert.equal("a key that is a function cannot be written as JSON",
      raised(encode, { x = 1, [print] = 1 }))
  end)

  it("refuses a table within itself", function()
    local t = { a = {} }
    t.a[1] = { t.a }
    assert.equal("a[1][1]: a table within itself cannot be written as JSON", raised(encode, t))
    t = {}
    t[1] = t
    assert.equal("[1]: a table within itself cannot be written as JSON", raised(encode, t))
  end)

  it("writes 512 levels, not more", function()
    local t = { 1 }
    for _ = 2, 512 do t = { t } end
    assert.equal(("["):rep(512) .. "1" .. ("]"):rep(512), encode(t))
    assert.matches("nested too deep: at most 512 levels", raised(encode, { t }))
  end)

  it("works in a coroutine, and after errors", function()
    local results = coroutine.wrap(function()
      for _ = 1, 100 do pcall(encode, { a = { print } }) end
      return encode { 1, { 2 } }
    end)
    assert.equal("[1,[2]]", results())
  end)

  it("can be used by a finalizer that runs meanwhile", function()
    for i = 1, 200 do
      local proxy = newproxy(true)
      getmetatable(proxy).__gc = function()
        assert(decode(encode { i, "from the finalizer" })[1] == i)
      end
    end
    local t = {}
    for i = 1, 200 do t[i] = { id = i + 0LL, text = ("x"):rep(i) } end
    for _ = 1, 50 do
      local back = decode(encode(t))
      assert.equal(200, #back)
      assert.equal(200, back[200].id)
    end
  end)
end)

describe("decode", function()
  it("reads every kind of value", function()
    assert.same({ 1, 2.5, -3, "x", true, false, null, { a = { b = {} } } },
      decode(' [1, 2.5, -3e0, "x", true, false, null, {"a": {"b": {}}}]\n'))
    assert.equal(null, decode("null"))
    assert.equal(false, decode("false"))
    assert.equal("", decode('""'))
    assert.equal("a\0b/é👍\n", decode([["a\u0000b\/\u00e9\ud83d\udc4d\n"]]))
    assert.same({ ["a\0"] = 1 }, decode([[{"a\u0000":1}]]))
  end)

  it("marks empty arrays only", function()
    assert.is_nil(getmetatable(decode("{}")))
    assert.is_nil(getmetatable(decode("[1]")))
    assert.equal(getmetatable(array()), getmetatable(decode("[]")))
    assert.equal("[[],[[]]]", encode(decode("[[],[[]]]")))
    assert.equal('{"a":{}}', encode(decode('{"a":{}}')))
  end)

  it("makes a double of every number", function()
    assert.equal(2 ^ 53, decode("9007199254740993")) -- the nearest
    assert.equal(2 ^ 64, decode("18446744073709551615"))
    assert.equal(1e30, decode("1000000000000000000000000000000"))
    assert.equal(-2 ^ 63, decode("-9223372036854775808"))
    assert.equal(0, decode("1e-999"))
    assert.matches("infinity", refused("1e999"))
  end)

  it("keeps the last of members with the same name", function()
    assert.same({ a = 2, b = 3 }, decode('{"a":1,"b":3,"a":2}'))
  end)

  it("tells line, column, byte and context of what is wrong", function()
    assert.matches('at line 1, column 6 %(byte 6%), before "x"$', refused("[1,2,x"))
    assert.matches('at line 2, column 6 %(byte 14%), before "3}"$', refused('{"a":1,\n "b" 3}'))
    assert.matches('column 5 %(byte 7%), before "x"$', refused('"éé"x')) -- characters are counted
    assert.matches("at line 1, column 5 %(byte 5%), where the text ends$", refused('"abc'))
    assert.matches("at line 1, column 1 %(byte 1%), where the text ends$", refused(""))
    assert.matches('before "x+%.%.%."$', refused("[" .. ("x"):rep(100)))
    assert.is_true(#refused("[" .. ("\0"):rep(100)) < 200)
  end)

  it("refuses what is not JSON", function()
    for _, text in ipairs {
      " ", "nul", "nulll", "tru", "[1,]", "[,1]", "[1 2]", "{", "}", '{"a"}', '{"a":}', '{"a":1,}',
      "{a:1}", "{1:1}", "'a'", "01", "+1", ".5", "1.", "1e", "-", "0x1", "NaN", "Infinity", "1 2",
      '"\t"', '"\0"', '"\\x"', '"\\u12"', '"\\ud800"', '"\\udc00"', '"\255"', '"\192\128"',
      '"\237\160\128"', "\239\187\1911", "// c\n1", "1/**/", "[1]\0", "\0",
    } do
      assert.matches("^not JSON: ", refused(text))
    end
  end)

  it("reads 512 levels, not more", function()
    local value = decode(nested(512, "[", "]"))
    for _ = 1, 511 do value = value[1] end
    assert.same({}, value)
    assert.equal("nested too deep: at most 512 levels", refused(nested(513, "[", "]")))
    assert.equal("nested too deep: at most 512 levels", refused(nested(100000, "[", "]")))
    assert.equal("nested too deep: at most 512 levels",
      refused('{"a":' .. nested(512, "[", "]") .. "}"))
    local text = ('{"a":['):rep(256) .. "1" .. ("]}"):rep(256)
    assert.equal(text, encode(decode(text)))
  end)

  it("raises on what is no text", function()
    for _, value in ipairs { 5, true, {}, print } do
      assert.matches("string expected", raised(decode, value))
    end
    assert.matches("string expected", raised(decode))
  end)

  it("survives any bytes, and what it reads can be written and read again", function()
    local tokens = { "[", "]", "{", "}", ",", ":", '"a"', '"\\u0000"', "1", "-0.5e3", "true",
      "null", " ", "\n", '"', "\\", "\255", "9e99999" }
    local good = 0
    for _ = 1, 20000 do
      local parts = {}
      for i = 1, math.random(1, 9) do parts[i] = tokens[math.random(#tokens)] end
      local value = decode(table.concat(parts))
      if value ~= nil then
        good = good + 1
        assert.same(value, decode(encode(value)))
      end
    end
    assert.is_true(good > 100)
  end)
end)

describe("encode and decode", function()
  local random = math.random
  local value

  local function text()
    local bytes = {}
    for i = 1, random(0, 20) do bytes[i] = string.char(random(0, 127)) end
    return table.concat(bytes) .. (random(3) == 1 and "é👍" or "")
  end

  local scalars = {
    function() return random(-1000, 1000) end,
    function() return (random() - 0.5) * 10 ^ random(-300, 300) end,
    function() return random(2) == 1 end,
    function() return null end,
    text,
  }

  local function list(levels)
    local t = array()
    for i = 1, random(0, 6) do t[i] = value(levels) end
    return #t == 0 and t or setmetatable(t, nil)
  end

  local function object(levels)
    local t = {}
    for _ = 1, random(0, 6) do t[text()] = value(levels) end
    return t
  end

  function value(levels)
    if levels == 0 or random(3) == 1 then return scalars[random(#scalars)]() end
    return (random(2) == 1 and list or object)(levels - 1)
  end

  it("give back any value", function()
    for _ = 1, 2000 do
      local v = value(5)
      local back = decode(encode(v))
      assert.same(v, back)
      assert.equal(#encode(v), #encode(back)) -- {} and [] are kept apart
    end
  end)

  it("give back large tables", function()
    local t = {}
    for i = 1, 20000 do t[i] = { id = i, name = "user " .. i, tags = { "a", "b" } } end
    assert.same(t, decode(encode(t)))
  end)
end)
