#!lua flags=allow-oom
-- How far a search is that has published nothing yet. It is no part of the stream: it may be lost, and only the
-- latest counts.
-- KEYS    P
-- ARGV    id token payload
-- Reply   1 if the caller owns the job
-- Events  the payload to subscribers, as entry `progress`
--- @include job
--- @include live
local id, token, payload = unpack(ARGV)
local status, owner, subscribers = read(id, 'st', 'tok', 'gw')
if status ~= 'running' or owner ~= token then return 0 end
call('HSET', key('j', id), 'pg', payload)
tell(id, subscribers, 'progress', payload)
publish()
return 1
