#!lua flags=allow-oom
-- End a project: none of its API keys is accepted any more.
-- KEYS    P
-- ARGV    tenant
-- Reply   1 | 0 if there is no such project
-- Events  * to P:n:keys
--- @include key_changes
local hash = key('pj', ARGV[1])
if call('EXISTS', hash) == 0 then return 0 end
call('HSETNX', hash, 'arch', NOW)
tell_gateways('*')
return 1
