#!lua
-- Change limits of a tenant in one scope. They hold from this call on, for every client and gateway.
-- KEYS    P
-- ARGV    msgpack of a map: tenant; scope ('*', 'm <model>' or 'k <key>'); values, a map of names to numbers, -1 for a limit
--         that goes
-- Reply   the limits of the scope now, ' <name>=<number>...'
--- @include limits
--- @include parking
local asked = cmsgpack.unpack(ARGV[1])
local tenant, scope = asked.tenant, asked.scope
local hash, limits, names = key('lim', tenant), {}, {}
for name, value in string.gmatch(call('HGET', hash, scope) or '', ' ([%l_]+)=(%d+)') do limits[name] = value end
for name, value in pairs(asked.values) do
  limits[name] = value >= 0 and string.format('%d', value) or nil
  if value < 0 then call('HDEL', key('bk', tenant), scope .. ' ' .. name) end
end
for name in pairs(limits) do names[#names + 1] = name end
table.sort(names)
local text = ''
for _, name in ipairs(names) do text = text .. ' ' .. name .. '=' .. limits[name] end
if text == '' then call('HDEL', hash, scope) else call('HSET', hash, scope, text) end
call('ZADD', key('limited'), 0, tenant)
if asked.values.running then unpark(tenant) end
return text
