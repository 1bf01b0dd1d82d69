#!lua flags=allow-oom
-- Forget an endpoint and its deliveries. Of those that wait, a thousand at a time: call it until none is left.
-- KEYS    P
-- ARGV    id tenant
-- Reply   deliveries that are left, -1 if there is no such endpoint of the tenant
--- @include ended_deliveries
local id, tenant = ARGV[1], ARGV[2]
local owner = call('HGET', key('he', id), 'tn')
local is_left = not owner and call('ZSCORE', key('hr', tenant), id)
if owner ~= tenant and not is_left then return -1 end
call('DEL', key('he', id))
call('HDEL', key('hs', tenant), id)
call('ZREM', key('endpoints'), id, ':' .. tenant .. ':' .. id)
for _, event in ipairs(call('ZRANGE', key('hf', id), 0, -1)) do call('DEL', key('hd', id, event)) end
call('DEL', key('hf', id))
call('ZREM', key('hx'), id)
clear_waiting(id, 1000, forget_delivery)
take_turn(tenant, id)
return call('ZCARD', key('hq', id)) + call('ZCARD', key('hl', id))
