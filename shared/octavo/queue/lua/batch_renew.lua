#!lua flags=allow-oom
-- Renew the leases of batches.
-- KEYS    P
-- ARGV    lease_ms (batch token)...
-- Reply   {the server's time in ms, state of each, '' where it is another owner's or gone...}
--- @include batch
local out = {NOW}
for i = 2, #ARGV, 2 do
  local state = owned_state(ARGV[i], ARGV[i + 1])
  if state then call('ZADD', key('btL'), NOW + tonumber(ARGV[1]), ARGV[i]) end
  out[#out + 1] = state or ''
end
return out
