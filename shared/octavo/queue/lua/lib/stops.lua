--- @include clock
local STOP_GRACE_MS = 10000   -- a worker that ignores a stop mark for so long loses the job

-- The owner finds the mark in its next reply. If it does nothing about it, the reaper ends the job without it.
local function mark_stop(id, reason, at)
  call('HSET', key('j', id), 'cx', reason)
  call('ZADD', key('D'), at or NOW + STOP_GRACE_MS, id)
end

-- The stop mark of a running job, set here if its deadline has passed.
local function stop_reason(id, mark, deadline)
  if mark then return mark == 'expired' and mark or 'cancelled' end
  if deadline and NOW >= (tonumber(deadline) or math.huge) then
    mark_stop(id, 'expired')
    return 'expired'
  end
end
