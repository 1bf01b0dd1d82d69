--- @include keys
-- How a job enters fair queueing.

-- At the time that is reached, unless the tenant was beyond it when it left.
local function enter_fair(class, tenant, model)
  local current = tonumber(call('GET', key('V', class, model)) or 0)
  local own = tonumber(call('GET', key('lf', class, tenant, model)) or 0)
  call('ZADD', key('v', class, model), math.max(current, own), tenant)
end

local function enter_class(id, job, is_parked)
  if not is_parked and not call('ZSCORE', key('v', job.cls, job.mdl), job.tn) then enter_fair(job.cls, job.tn, job.mdl) end
  call('ZADD', key('b', job.cls, job.tn, job.mdl), call('INCR', key('seq')), id)
end
