#!lua
-- Give an API key a new secret. Repeating it changes nothing.
-- KEYS    P
-- ARGV    id tenant('' for any) digest grace_ms: so long does the secret hold that it has
-- Reply   1 | 0 if there is no such key of the tenant, or it has expired or is revoked
-- Events  the id to P:n:keys
--- @include key_changes
local id, tenant, digest, grace_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local hash = usable(id, tenant)
if not hash then return 0 end
local last = call('HGET', hash, 'dg')
if last == digest then return 1 end
call('HSET', hash, 'dg', digest)
if grace_ms > 0 then
  call('HSET', hash, 'pdg', last, 'pexp', NOW + grace_ms)
else
  call('HDEL', hash, 'pdg', 'pexp')
end
tell_gateways(id)
return 1
