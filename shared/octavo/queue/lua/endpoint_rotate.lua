#!lua
-- Give an endpoint the secret of its next version. Repeating it changes nothing.
-- KEYS    P
-- ARGV    id tenant version (that it has) keep_ms (for how long the old one signs, too)
-- Reply   its version now, 0 if there is no such endpoint of the tenant
--- @include clock
local id, tenant, version, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local hash = key('he', id)
local owner, known = unpack(call('HMGET', hash, 'tn', 'ver'))
if owner ~= tenant then return 0 end
if tonumber(known) ~= version then return tonumber(known) end
call('HSET', hash, 'ver', version + 1, 'ut', NOW)
if keep_ms > 0 then call('HSET', hash, 'old', NOW + keep_ms) else call('HDEL', hash, 'old') end
return version + 1
