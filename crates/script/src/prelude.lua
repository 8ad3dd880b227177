-- Runs once in a new Lua, before any script: makes what scripts share unalterable.
--
-- A frozen table is an empty one in front of the true one: reading goes through, writing is refused. The functions of
-- the basic library that look past metatables are replaced by some that know frozen tables.
local globals, hidden, loading, native = ...
local error, type, tostring = error, type, tostring
local getmetatable, setmetatable = getmetatable, setmetatable
local rawget, rawset, next, pairs, ipairs = rawget, rawset, next, pairs, ipairs
local loadstring, load, byte, sub, concat = loadstring, load, string.byte, string.sub, table.concat
local tonumber, unpack = tonumber, unpack

local READONLY = 'Attempt to modify a readonly table'
local function refuse() error(READONLY, 2) end

-- Frozen table -> true table.
local truth = setmetatable({}, { __mode = 'k' })
local LOCKED = {}
setmetatable(LOCKED, { __newindex = refuse, __metatable = LOCKED })
truth[LOCKED] = {}

local function freeze(t)
  local front = setmetatable({}, { __index = t, __newindex = refuse, __metatable = LOCKED })
  truth[front] = t
  return front
end

local function strict(t)
  return setmetatable(t, { __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end })
end

local function check_table(t, name)
  if type(t) ~= 'table' then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. (t == nil and 'nil' or type(t)) .. ')', 3)
  end
end

function native.base.pairs(t)
  check_table(t, 'pairs')
  local true_table = truth[t]
  if not true_table then return next, t, nil end
  local key, value
  return function()
    key, value = next(true_table, key)
    return key, value
  end
end

function native.base.ipairs(t)
  check_table(t, 'ipairs')
  return ipairs(t)
end

function native.base.next(t, key)
  check_table(t, 'next')
  return next(truth[t] or t, key)
end

function native.base.rawget(t, key)
  check_table(t, 'rawget')
  return rawget(truth[t] or t, key)
end

function native.base.rawset(t, key, value)
  check_table(t, 'rawset')
  if truth[t] then error(READONLY, 0) end
  return rawset(t, key, value)
end

function native.base.setmetatable(t, metatable)
  check_table(t, 'setmetatable')
  if truth[t] then error(READONLY, 0) end
  return setmetatable(t, metatable)
end

local function number(value, place, default)
  if value == nil then return default end
  local found = tonumber(value)
  if not found then
    error("bad argument #" .. place .. " to 'unpack' (number expected, got " .. type(value) .. ')', 3)
  end
  return found
end

-- Lua counts the values in 32 bits. Where that overflows it believes that there are few, and writes behind its stack
-- (CVE-2025-46817). No stack holds more than 8,000.
function native.base.unpack(t, first, last)
  if type(t) ~= 'table' then
    error("bad argument #1 to 'unpack' (table expected, got " .. (t == nil and 'no value' or type(t)) .. ')', 2)
  end
  local from, to = number(first, 2, 1), number(last, 3, #t)
  if from > to then return end
  if not (from >= -2147483648 and to <= 2147483647 and to - from < 8000) then
    error('too many results to unpack', 2)
  end
  -- What is passed on takes room that the values need.
  if last ~= nil then return unpack(t, from, to) end
  if first ~= nil then return unpack(t, from) end
  return unpack(t)
end

-- Compiled code could do what no text can.
function native.base.loadstring(text, name)
  if type(text) ~= 'string' and type(text) ~= 'number' then
    error("bad argument #1 to 'loadstring' (string expected, got " .. (text == nil and 'no value' or type(text)) .. ')', 2)
  end
  if byte(text, 1) == 27 then return nil, 'truncated precompiled chunk' end
  return loadstring(text, name)
end

function native.base.load(read, name)
  local pieces = {}
  while true do
    local piece = read()
    if piece == nil or piece == '' then break end
    pieces[#pieces + 1] = piece
  end
  local text = concat(pieces)
  if byte(text, 1) == 27 then return nil, 'truncated precompiled chunk' end
  return loadstring(text, name or '=(load)')
end

-- What scripts see: the basic functions by name, then the libraries.
for _, name in ipairs { 'assert', 'collectgarbage', 'error', 'gcinfo', 'getmetatable', 'ipairs', 'load', 'loadstring',
    'next', 'pairs', 'pcall', 'rawequal', 'rawget', 'rawset', 'select', 'setmetatable', 'tonumber', 'tostring', 'type',
    'unpack', 'xpcall', '_VERSION' } do
  hidden[name] = native.base[name] or globals[name]
end
for _, name in ipairs { 'string', 'table', 'math', 'coroutine' } do
  local library = {}
  for key, value in pairs(globals[name]) do library[key] = value end
  for key, value in pairs(native[name] or {}) do library[key] = value end
  hidden[name] = freeze(library)
end
for _, name in ipairs { 'cjson', 'cmsgpack', 'struct', 'bit', 'os' } do
  hidden[name] = freeze(native[name])
end
hidden.redis = freeze(native.redis)
-- The same by the name that Valkey gives it.
hidden.server = hidden.redis
hidden._G = globals
truth[globals] = hidden
local of_strings = getmetatable('')
of_strings.__index = hidden.string
of_strings.__metatable = LOCKED

-- While a library is loaded it can register functions, and little else.
loading.redis = freeze(strict(native.loading))
loading.server = loading.redis
strict(loading)
strict(hidden)

local names = {}
for name in next, globals do names[#names + 1] = name end
for _, name in ipairs(names) do globals[name] = nil end

local view = { __index = hidden, __newindex = refuse, __metatable = LOCKED }
setmetatable(globals, view)
return view
