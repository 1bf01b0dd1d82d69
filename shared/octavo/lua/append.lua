#!lua flags=allow-oom
-- Store tokens of up to 64 sequences. An offset that is already there is a duplicate, one beyond the end shows that
-- the server lost tokens; neither writes anything.
-- ARGV: (id token start count payload)...   -> {{state, offset, reason}...}
local out = {}
for i = 1, #ARGV, 5 do
  local id, token, start, tokens, payload = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3]), ARGV[i + 4]
  local job = fields(id, 'st', 'tok', 'n', 'cx', 'gw', 'dl')
  local stored = tonumber(job.n or 0)
  local state = 'ok'
  if job.st ~= 'running' or job.tok ~= token then
    state = 'fenced'
  elseif start + tokens <= stored then
    state = 'dup'
  elseif start ~= stored then
    state = 'rewind'
  else
    stored = stored + tokens
    local entry = string.format('%d-0', stored)
    redis.call('XADD', key('t', id), entry, 'd', payload)
    redis.call('HSET', key('j', id), 'n', stored)
    tell(id, job.gw, entry, payload)
  end
  local stop = (state == 'ok' or state == 'dup') and stop_reason(id, job)
  table.insert(out, {stop and 'cancel' or state, stored, stop or ''})
end
publish()
return out
