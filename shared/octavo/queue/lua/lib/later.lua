--- @include entering
--- @include counters
--- @include bell
--- @include pauses
-- Jobs that start not before a time wait in P:later, by that time. Then they are jobs like others.

-- A job whose time has come enters its lane, behind those that are there.
local function begin(id, job)
  local is_parked = call('SISMEMBER', key('pk', job.tn), job.cls .. ' ' .. job.mdl) == 1
  count_queued(job, -1)
  call('HDEL', key('j', id), 'ltr')
  job.ltr = nil
  count_queued(job, 1)
  if job.qdl then call('HSET', key('j', id), 'pz', (pauses_of(job.cls, job.mdl))) end
  enter_class(id, job, is_parked)
  if not is_parked then ring(job.mdl) end
end
