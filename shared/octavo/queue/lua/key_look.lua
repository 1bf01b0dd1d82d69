#!lua flags=no-writes
-- An API key as it is now.
-- KEYS    P
-- ARGV    id field...
-- Reply   {NOW, 1 if its project is archived, value of each field}
--- @include tenant_keys
local values = call('HMGET', key('k', ARGV[1]), unpack(ARGV, 2))
return {NOW, values[1] and is_archived(values[1]) and 1 or 0, unpack(values)}
