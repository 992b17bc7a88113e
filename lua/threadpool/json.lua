local core = require("threadpool.core")

---JSON in C. A table with the keys 1 to n (n >= 1) is an array, one with strings as keys an object,
---whose members are written in any order; an empty table is `{}` unless it is marked with `array`.
---Tables are read as they are: no metamethod is called.
---@class threadpool.json
local json = {}

---Stands for null, in both directions. It is true in a condition: compare, `value == json.null`.
---@type lightuserdata
json.null = core.json_null

---Write a value as JSON. Whole numbers up to 2^53 are written as such, other numbers in the fewest
---digits that are read as the same number, int64_t and uint64_t of the ffi exactly; a byte of a
---string that is no UTF-8 becomes U+FFFD.
---
---An error, which names the place (`args.headers[2]: a function cannot be written as JSON`): inf
---and nan, a table with holes or with numbers beside strings as keys, a table within itself, more
---than 512 levels, and every other type.
---@type fun(value: nil|boolean|number|string|table|lightuserdata|ffi.cdata*): string
json.encode = core.json_encode

---Read JSON (RFC 8259, strictly). null becomes `json.null`, an empty array is marked as by `array`,
---a number becomes the nearest double: whole numbers above 2^53 are exact as strings only. Of
---members with the same name the last one counts.
---
---nil and a message, which tells line and column, if it is no JSON or has more than 512 levels; an
---error if `text` is no string.
---@type fun(text: string): any, string?
json.decode = core.json_decode

---Mark a table, or a new one, so that it is written as `[]` when it is empty. It must have no
---metatable of its own.
---@type fun(table?: table): table
json.array = core.json_array

return json
