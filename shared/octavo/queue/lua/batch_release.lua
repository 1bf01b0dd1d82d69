#!lua flags=allow-oom
-- Give a batch back: any clerk may take it, at once.
-- KEYS    P
-- ARGV    batch token
-- Reply   1 if it was the caller's
--- @include batch
local id, token = ARGV[1], ARGV[2]
if not owned_state(id, token) then return 0 end
call('HDEL', key('bt', id), 'tok', 'wid')
call('ZREM', key('btL'), id)
call('ZADD', key('bts'), NOW, id)
return 1
