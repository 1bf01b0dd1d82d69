#!lua flags=allow-oom
-- Forget a service account, and revoke its keys.
-- KEYS    P
-- ARGV    id tenant known_s
-- Reply   1 | 0 if there is no such account of the tenant
-- Events  ids of its keys to P:n:keys
--- @include key_changes
local id, tenant, known_s = unpack(ARGV)
if call('HGET', key('ka', id), 'tn') ~= tenant then return 0 end
local own = '@' .. id .. ':'
for _, member in ipairs(call('ZRANGE', key('ks'), '[' .. own, '(' .. own .. '~', 'BYLEX')) do
  revoke(string.sub(member, #own + 1), tenant, known_s)
  call('ZREM', key('ks'), member)
end
call('DEL', key('ka', id))
call('ZREM', key('kas'), ':' .. tenant .. ':' .. id)
return 1
