#!lua flags=allow-oom
-- Store tokens of up to 64 sequences. An offset that is already there is a duplicate, one beyond the end shows that
-- the server lost tokens; neither writes anything.
-- ARGV: (id token start count payload)...   -> {{state, offset, reason}...}
-- The one script on the path of every token, hence written without the helpers that build tables.
local call, out = redis.call, {}
local hashes, streams = P .. ':j:', P .. ':t:'
for i = 1, #ARGV, 5 do
  local id, start, tokens = ARGV[i], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local hash = hashes .. id
  local job = call('HMGET', hash, 'st', 'tok', 'n', 'cx', 'gw', 'dl')
  local stored = tonumber(job[3] or 0)
  local state = 'ok'
  if job[1] ~= 'running' or job[2] ~= ARGV[i + 1] then
    state = 'fenced'
  elseif start + tokens <= stored then
    state = 'dup'
  elseif start ~= stored then
    state = 'rewind'
  else
    stored = stored + tokens
    local entry = stored .. '-0'
    call('XADD', streams .. id, entry, 'd', ARGV[i + 4])
    call('HSET', hash, 'n', stored)
    if job[5] then tell(id, job[5], entry, ARGV[i + 4]) end
  end
  local stop = (job[4] or job[6]) and (state == 'ok' or state == 'dup') and stop_reason(id, {cx = job[4], dl = job[6]})
  out[#out + 1] = {stop and 'cancel' or state, stored, stop or ''}
end
publish()
return out
