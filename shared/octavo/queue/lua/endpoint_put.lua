#!lua
-- Make an endpoint known, or change it, which switches it on again. Repeating it changes nothing.
-- KEYS    P
-- ARGV    msgpack of a map: id tenant, name url types (with blanks between) as far as they are set, cap (endpoints of a
--         tenant) where it is new
-- Reply   ok | full | '' if there is no such endpoint of the tenant
--- @include deliveries
local asked = cmsgpack.unpack(ARGV[1])
local id, tenant, hash = asked.id, asked.tenant, key('he', asked.id)
local owner = call('HGET', hash, 'tn')
if owner and owner ~= tenant or not owner and not asked.cap then return '' end
if not owner then
  local own = ':' .. tenant .. ':'
  if #call('ZRANGEBYLEX', key('endpoints'), '[' .. own, '(' .. own .. '~') >= asked.cap then return 'full' end
  call('HSET', hash, 'tn', tenant, 'ct', NOW, 'ver', 1)
  call('ZADD', key('endpoints'), 0, id, 0, own .. id)
end
local is_changed = call('HDEL', hash, 'off') == 1
for field, value in pairs({name = asked.name, url = asked.url, typ = asked.types}) do
  if call('HGET', hash, field) ~= value then
    call('HSET', hash, field, value)
    is_changed = true
  end
end
if is_changed then call('HSET', hash, 'ut', NOW) end
call('HSET', key('hs', tenant), id, call('HGET', hash, 'typ'))
take_turn(tenant, id)
return 'ok'
