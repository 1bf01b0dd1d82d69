#!lua flags=allow-oom
-- Store tokens of up to 64 sequences. An offset that is already there is a duplicate, one beyond the end shows that
-- the server lost tokens; neither writes anything.
-- KEYS    P
-- ARGV    msgpack of {{id, token, start, count, payload, several(true: the job has several sequences)}...}
-- Reply   {{ok | dup | rewind | fenced | cancel, tokens stored, '' or why to stop}...}
-- Events  stored entries to subscribers
--- @include clock
--- @include stops
--- @include live
-- The one script on the path of every token: its keys are concatenated without a call.
local out, hashes, streams = {}, P .. ':j:', P .. ':t:'
for i, item in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, token, start, tokens, payload, several = unpack(item)
  local hash = hashes .. id
  local job = call('HMGET', hash, 'st', 'tok', 'n', 'cx', 'gw', 'dl')
  local stored = tonumber(job[3] or 0)
  local state = 'ok'
  if job[1] ~= 'running' or job[2] ~= token then
    state = 'fenced'
    --- @include tally
    tally_refused(id, token)
  elseif start + tokens <= stored then
    state = 'dup'
  elseif start ~= stored then
    state = 'rewind'
  else
    stored = stored + tokens
    local entry = stored .. '-0'
    call('XADD', streams .. id, entry, 'd', payload)
    if start == 0 then call('HSET', hash, 'n', stored, 'f1', NOW) else call('HSET', hash, 'n', stored) end
    if several then
      --- @include epochs
      note_epoch(hash, epoch_of(token), start, stored)
      entry = entry .. '-' .. epoch_of(token)
    end
    tell(id, job[5], entry, payload)
  end
  local stop = (job[4] or job[6]) and (state == 'ok' or state == 'dup') and stop_reason(id, job[4], job[6])
  out[i] = {stop and 'cancel' or state, stored, stop or ''}
end
publish()
return out
