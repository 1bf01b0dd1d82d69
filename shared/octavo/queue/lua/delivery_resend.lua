#!lua
-- Deliveries that failed to the end begin anew, the earliest first, as far as there is room.
-- KEYS    P
-- ARGV    endpoint tenant event ('' for all that are known)
-- Reply   how many, -1 if there is no such endpoint of the tenant, -2 if it is switched off
--- @include deliveries
--- @include failing_endpoints
local endpoint, tenant, only = ARGV[1], ARGV[2], ARGV[3]
local owner, off = unpack(call('HMGET', key('he', endpoint), 'tn', 'off'))
if owner ~= tenant then return -1 end
if off then return -2 end
local begun = 0
for _, event in ipairs(only ~= '' and {only} or call('ZRANGE', key('hf', endpoint), 0, -1)) do
  local delivery = key('hd', endpoint, event)
  if not has_room(tenant, endpoint) then break end
  if call('ZREM', key('hf', endpoint), event) == 1 and call('PERSIST', delivery) == 1 then
    call('HDEL', delivery, 'ft')
    call('HSET', delivery, 'st', 'waiting', 'n', 0)
    call('ZADD', key('hq', endpoint), NOW, event)
    count_waiting(1)
    begun = begun + 1
  end
end
note_going(endpoint)
take_turn(tenant, endpoint)
return begun
