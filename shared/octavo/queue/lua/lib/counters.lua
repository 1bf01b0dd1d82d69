--- @include keys
-- How much is queued and running, in all and by tenant.

-- Never below zero: what a damaged job was counted as is not always known.
local function bump(hash, field, by)
  if call('HINCRBY', hash, field, by) <= 0 then call('HDEL', hash, field) end
end

local function count(tenant, field, by)
  bump(key('q'), field, by)
  bump(key('q', tenant), field, by)
end

-- A job that is to start later (`ltr`) does not wait for a worker yet.
local function count_queued(job, by)
  count(job.tn, 'queued', by)
  bump(key('q'), (job.ltr and 'later:' or 'queued:') .. job.mdl, by)
end
