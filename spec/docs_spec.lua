-- docs/LUA.md: its examples are run, and it mentions all there is.

local child = dofile "spec/help/child.lua"
local threadpool = require "threadpool"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local text = read "docs/LUA.md"

-- Tabs and several blanks are one blank: so columns of an example can be aligned.
local function lines_of(output)
  local lines = {}
  for line in output:gmatch "[^\n]+" do
    lines[#lines + 1] = line:gsub("%s+", " "):gsub("^ ", ""):gsub(" $", "")
  end
  return table.concat(lines, "\n")
end

---The examples: what is between ```lua and ```. What is to be printed stands behind `-->`, line for line.
local function examples()
  local found, current, number = {}, nil, 0
  for line in (text .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    if current and line:find "^```" then
      current.program = table.concat(current, "\n") .. "\n"
      current.expected = lines_of(table.concat(current.prints, "\n"))
      found[#found + 1] = current
      current = nil
    elseif current then
      current[#current + 1] = line
      current.prints[#current.prints + 1] = line:match "%-%->(.*)$"
    elseif line == "```lua" then
      current = { line = number, prints = {} }
    end
  end
  return found
end

describe("docs/LUA.md", function()
  local all = examples()

  it("has examples, and no block that is not run but those that say so", function()
    assert.is_true(#all > 15)
    for label in text:gmatch "\n```lua([^\n]+)" do assert.equal(" no-run", label) end
  end)

  -- Not by require: luv cannot be loaded a second time in one process, which busted makes of that.
  local function is_installed(name)
    return package.searchpath(name, package.path) or package.searchpath(name, package.cpath)
  end

  for _, example in ipairs(all) do
    local library = true
    for name in example.program:gmatch "require \"(%l+)\"" do
      if (name == "luv" or name == "copas" or name == "cqueues") and not is_installed(name) then library = false end
    end
    it(("has an example at line %d that prints what it says"):format(example.line), function()
      if not library then return pending "a library of others is not installed" end
      assert.not_equal("", example.expected, "it does not say what it prints: --> ...")
      local ended = child.run(example.program)
      assert.equal(example.expected, lines_of(ended.out), ended.err)
      assert.equal("", ended.err)
      assert.equal(0, ended.code)
    end)
  end

  it("has links that lead somewhere", function()
    local places, n = {}, 0
    for heading in text:gmatch "\n#+ ([^\n]+)" do
      places[heading:lower():gsub("[^%w -]", ""):gsub(" ", "-")] = true
    end
    for link in text:gmatch "%]%(([^)]+)%)" do
      local file, place = link:match "^([^#]*)#?(.*)$"
      if file == "" then assert.is_true(places[place], link) else read("docs/" .. file) end
      n = n + 1
    end
    assert.is_true(n > 20)
  end)

  -- --- what there is, by how the document writes it

  local function class_of(name)
    local class
    threadpool.group(function(group) class = name == "group" and getmetatable(group) or nil end)
    return class
  end

  local vector = require "threadpool.vector"
  local tables = {
    ["threadpool."] = threadpool,
    ["pool:"] = threadpool.Pool,
    ["task:"] = threadpool.Task,
    ["channel:"] = getmetatable(threadpool.channel(1)) and require "threadpool.core".channel_class.__index,
    ["group:"] = class_of "group",
    ["vector."] = vector,
    ["matrix:"] = getmetatable(vector.matrix(1, 1)),
    ["json."] = require "threadpool.json",
    ["err."] = threadpool.Error,
  }
  -- Ours, and what travels by (docs/LUA.md, `__threadpool`).
  local internal = {
    ["pool:"] = { wrap = true, pack = true, unpack = true, here = true },
    ["task:"] = { new = true, failed = true },
    ["err."] = { new = true, is = true, pack = true, unpack = true },
  }

  for prefix, class in pairs(tables) do
    it(("mentions all of %s"):format(prefix), function()
      for name, value in pairs(class) do
        if type(value) == "function" and not name:find "^_" and not (internal[prefix] or {})[name] then
          local pattern = "%f[%w]" .. prefix:gsub("%.", "%%.") .. name .. "%f[^%w_]"
          assert.is_truthy(text:find(pattern), ("%s%s is not in docs/LUA.md"):format(prefix, name))
        end
      end
    end)
  end

  for _, prefix in ipairs { "pool:", "task:", "group:", "matrix:", "channel:" } do
    it(("mentions nothing that is not there, of %s"):format(prefix), function()
      for name in text:gmatch("%f[%w]" .. prefix .. "([%a_]+)") do
        assert.is_function(tables[prefix][name], ("there is no %s%s"):format(prefix, name))
      end
    end)
  end

  local source = {}
  for _, name in ipairs { "init", "pool", "task", "error", "map", "share", "group", "vector", "channel",
    "loop/luv", "loop/copas", "loop/cqueues" } do
    source[name] = read(assert(package.searchpath("threadpool." .. name:gsub("/", "."), package.path)))
  end

  it("mentions every option, and every field of an error", function()
    for name, classes in pairs {
      init = { "Options" }, pool = { "SpawnOptions" }, map = { "MapOptions" }, error = { "Error" },
      share = { "Range" }, vector = { "RowOptions", "TopOptions", "VectorOptions" },
    } do
      for _, class in ipairs(classes) do
        local fields = assert(source[name]:match("%-%-%-@class threadpool%." .. class .. "\n(.-)\n[^-\n]*\n"))
        for field in fields:gmatch "%-%-%-@field ([%a_]+)" do
          assert.is_truthy(text:find("`" .. field .. "%f[^%w_]"), ("%s of threadpool.%s"):format(field, class))
        end
      end
    end
    for option in source.init:match("local names = (%b{})"):gmatch "([%a_]+) = true" do
      assert.is_truthy(source.init:find("@field " .. option .. "?", 1, true), option .. " has no type")
    end
  end)

  it("mentions every error code", function()
    local core, n = require "threadpool.core", 0
    for name, value in pairs(core) do
      if type(value) == "number" and name:find "^ERR_" and value ~= 0 then
        assert.is_truthy(text:find("`" .. name .. "`", 1, true), name)
        n = n + 1
      end
    end
    assert.is_true(n > 5)
    for code = -1, -16, -1 do
      assert.is_truthy(text:find("`" .. core.error_name(code) .. "`", 1, true), core.error_name(code))
    end
  end)

  -- --- types

  it("leaves the types to LuaCATS annotations: every public function has them", function()
    for file, code in pairs(source) do
      local block, n = {}, 0
      for line in code:gmatch "([^\n]*)\n" do
        local indent, owner, name, params = line:match "^(%s*)function ([%a_]+)[.:](%a[%w_]*)%((.-)%)"
        if owner then
          n = n + 1
          local comment = table.concat(block, "\n")
          local where = ("%s: %s.%s"):format(file, owner, name)
          local known = comment:find("@see", 1, true) or comment:find("@type", 1, true)
          local ours = owner == "sched" or owner == "job" or owner == "Wait" or owner == "Coroutine"
            or (internal[owner == "Pool" and "pool:" or owner == "Task" and "task:" or "err."] or {})[name]
            or file == "share" and (name == "pack" or name == "unpack")
          if not known and not ours then
            assert.is_true(#block > 0, where .. " has no comment")
            for param in params:gmatch "[^%s,]+" do
              assert.is_truthy(comment:find("@param " .. param, 1, true), ("%s: @param %s"):format(where, param))
            end
            local body = code:match(("\n%s\n(.-)\n%send"):format(line:gsub("%p", "%%%0"), indent))
            if body and body:find("\n" .. indent .. "  return [^\n]", 1) then
              assert.is_truthy(comment:find("@return", 1, true), where .. ": @return")
            end
          end
        end
        if line:find "^%s*%-%-%-" then block[#block + 1] = line elseif line ~= "" then block = {} end
      end
      assert.is_true(n > 0, file)
    end
  end)
end)
