--- @include clock
-- Paused lanes: P:pauses has '<ms of all pauses that are over> <ms since it is paused, 0 if it is not>' under '<class>
-- <model>', for each lane that ever was paused. Jobs that come back to a paused lane go on.

-- Ms of all pauses of a lane until now, and the ms since it is paused, 0 if it is not.
local function pauses_of(class, model)
  local over, since = string.match(call('HGET', key('pauses'), class .. ' ' .. model) or '', '^(%d+) (%d+)$')
  over, since = tonumber(over or 0), tonumber(since or 0)
  return since > 0 and over + math.max(0, NOW - since) or over, since
end

-- The ms until which a job must have started. The time of pauses since it began to wait is no part of that, unless it has
-- lost its worker.
local function start_limit(job)
  local limit = tonumber(job.qdl)
  if job.lane ~= job.cls then return limit end
  return limit + math.max(0, pauses_of(job.cls, job.mdl) - (tonumber(job.pz) or 0))
end
