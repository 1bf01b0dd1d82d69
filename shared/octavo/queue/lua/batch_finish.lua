#!lua flags=allow-oom
-- End a batch: its files, its state, all at once. Its input may go from now on.
-- KEYS    P
-- ARGV    msgpack of a map: id token state known_s (for how long the batch is known); where there are files (a list of maps as
--         file_note takes them, each with kind: out or err), errors (of its structure)
-- Reply   ok | fenced | open (lines are left) | state that does not end so
--- @include batch
--- @include files
--- @include events
local asked = cmsgpack.unpack(ARGV[1])
local id, hash = asked.id, key('bt', asked.id)
local BEFORE = {failed = 'validating', completed = 'finalizing', expired = 'finalizing', cancelled = 'cancelling'}
local state = owned_state(id, asked.token)
if not state then return call('HGET', hash, 'ftok') == asked.token and 'ok' or 'fenced' end
if state ~= BEFORE[asked.state] then return state end
if has_lines_open(id) or number_of(id, 'cur') < number_of(id, 'total') then return 'open' end

for _, file in ipairs(asked.files or {}) do
  note_file(file)
  call('HSET', hash, file.kind, file.id)
end
if asked.errors then call('HSET', hash, 'errs', asked.errors) end
note_event(call('HGET', hash, 'tn'), 'batch.' .. asked.state, id, call('HGET', hash, 'tp'))
enter_state(id, asked.state)
call('HSET', hash, 'ftok', asked.token)
call('HDEL', hash, 'tok', 'wid')
use_file(call('HGET', hash, 'in'), -1)
call('DEL', key('btp', id))
call('ZREM', key('btL'), id)
call('ZADD', key('bts'), NOW + asked.known_s * 1000, id)
return 'ok'
