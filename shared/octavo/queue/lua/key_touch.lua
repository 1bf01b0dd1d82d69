#!lua
-- Note that an API key is used, unless that was noted within `every_ms`.
-- KEYS    P
-- ARGV    id every_ms
-- Reply   1 if it was noted
--- @include tenant_keys
local hash = key('k', ARGV[1])
local owner, used, revoked = unpack(call('HMGET', hash, 'tn', 'used', 'rev'))
if not owner or revoked then return 0 end
local since = NOW - tonumber(used or 0)
if since >= 0 and since < tonumber(ARGV[2]) then return 0 end  -- the clock may have been set back
call('HSET', hash, 'used', NOW)
return 1
