#!lua flags=allow-oom
-- Ask for a batch's end. What has ended of it is delivered.
-- KEYS    P
-- ARGV    batch tenant('' for any)
-- Reply   its state now, '' if there is no such batch of the tenant
--- @include batch
local id, tenant = ARGV[1], ARGV[2]
local owner, state = unpack(call('HMGET', key('bt', id), 'tn', 'st'))
if not owner or (tenant ~= '' and owner ~= tenant) then return '' end
if state ~= 'validating' and state ~= 'in_progress' then return state end
enter_state(id, 'cancelling')
return 'cancelling'
