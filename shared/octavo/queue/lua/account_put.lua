#!lua
-- Make a service account known, or rename it.
-- KEYS    P
-- ARGV    id tenant name
-- Reply   ok | archived (its project) | unknown: another tenant's
--- @include tenant_keys
local id, tenant, name = unpack(ARGV)
local hash = key('ka', id)
local owner = call('HGET', hash, 'tn')
if owner and owner ~= tenant then return 'unknown' end
if is_archived(tenant) then return 'archived' end
if not owner then
  call('HSET', hash, 'tn', tenant, 'ct', NOW)
  call('ZADD', key('kas'), 0, ':' .. tenant .. ':' .. id)
  note_project(tenant, tenant)
end
call('HSET', hash, 'name', name)
return 'ok'
