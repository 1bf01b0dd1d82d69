#!lua
-- Change what an API key may do, and when it expires.
-- KEYS    P
-- ARGV    id tenant('' for any) expires_ms from now('' as it was) scopes('' as they were)
-- Reply   1 | 0 if there is no such key of the tenant, or it has expired or is revoked
-- Events  the id to P:n:keys
--- @include key_changes
local id, tenant, expires_ms, scopes = unpack(ARGV)
local hash = usable(id, tenant)
if not hash then return 0 end
if expires_ms ~= '' then call('HSET', hash, 'exp', NOW + expires_ms) end
if scopes ~= '' then call('HSET', hash, 'sc', scopes) end
tell_gateways(id)
return 1
