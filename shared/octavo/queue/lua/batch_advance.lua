#!lua flags=allow-oom
-- All jobs of the lines between two places are submitted. What lies before the cursor is never submitted again.
-- KEYS    P
-- ARGV    msgpack of a map: id token from to rejected (places in between whose lines ask for no job)
-- Reply   {ok | fenced | moved | state that takes no lines, cursor}
--- @include batch
local asked = cmsgpack.unpack(ARGV[1])
local id = asked.id
local state, cursor = owned_state(id, asked.token), number_of(id, 'cur')
if not state then return {'fenced', cursor} end
if cursor == asked.to then return {'ok', cursor} end
if state ~= 'in_progress' then return {state, cursor} end
if cursor ~= asked.from then return {'moved', cursor} end
for _, place in ipairs(asked.rejected) do call('ZADD', key('bte', id), place, place .. ' 0 -') end
call('HSET', key('bt', id), 'cur', asked.to)
return {'ok', asked.to}
