--- @include clock
--- @include keys
-- After a restart or a pause of the server nothing ends for want of its owner: owners get time to renew leases, and to
-- say again what the server may have forgotten of the last seconds.
local GRACE_MS = 3000
local PAUSE_MS = 5000
local RUN = string.match(call('INFO', 'server'), 'run_id:(%x+)')

-- The time at which it is over, by what the reaper has seen, and when it saw that.
local function grace()
  local seen = call('HMGET', key('reaper'), 'run', 'at', 'grace')
  local at = tonumber(seen[2] or 0) or 0
  if seen[1] and (seen[1] ~= RUN or NOW - at > PAUSE_MS) then return NOW + GRACE_MS, at end
  return math.min(tonumber(seen[3] or 0) or 0, NOW + GRACE_MS), at  -- less if the clock was set back
end
