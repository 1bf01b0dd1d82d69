#!lua
-- Make a tenant a project, or rename one.
-- KEYS    P
-- ARGV    tenant name new(1: it must be none yet, 0: it must be one)
-- Reply   1 | 0 if it is one already, or none
--- @include tenant_keys
local tenant, name, is_new = ARGV[1], ARGV[2], ARGV[3] == '1'
if is_new then return note_project(tenant, name) end
if call('EXISTS', key('pj', tenant)) == 0 then return 0 end
call('HSET', key('pj', tenant), 'name', name)
return 1
