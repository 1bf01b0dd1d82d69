#!lua
-- Accept a batch. Its input cannot go before it has ended. Repeating it with the same id changes nothing.
-- KEYS    P
-- ARGV    msgpack of a map: id tenant endpoint input window window_s; where there are metadata, output_expires_s, key (id of
--         the API key that asks), trace (the context of its trace), an idempotency_key with hash (of the request) and seconds for which it is known
-- Reply   {'ok', id} | {'conflict', id} | {'no_file'} | {'purpose', that of the file}
--- @include files
local new = cmsgpack.unpack(ARGV[1])
local hash = key('bt', new.id)
if call('EXISTS', hash) == 1 then return {'ok', new.id} end
local named = new.idempotency_key and key('i', new.tenant, new.idempotency_key)
if named then
  local old, old_hash = string.match(call('GET', named) or '', '(%S+) (%S+)')
  if old then return {old_hash == new.hash and 'ok' or 'conflict', old} end
end
local owner, purpose = unpack(call('HMGET', key('f', new.input), 'tn', 'purp'))
if owner ~= new.tenant then return {'no_file'} end
if purpose ~= 'batch' then return {'purpose', purpose} end

local batch = {'tn', new.tenant, 'ep', new.endpoint, 'in', new.input, 'win', new.window, 'ct', NOW, 'st', 'validating',
  'dl', NOW + new.window_s * 1000}
local function note(field, value)
  if value then
    batch[#batch + 1] = field
    batch[#batch + 1] = value
  end
end
note('meta', new.metadata)
note('oexp', new.output_expires_s)
note('key', new.key)
note('tp', new.trace)
call('HSET', hash, unpack(batch))
if named then call('SET', named, new.id .. ' ' .. new.hash, 'EX', new.seconds) end
use_file(new.input, 1)
call('ZADD', key('bts'), NOW, new.id)
call('ZADD', key('batches'), 0, new.id, 0, ':' .. new.tenant .. ':' .. new.id)
return {'ok', new.id}
