--- @include keys
-- How a job enters fair queueing.

local function enter_class(id, job)
  local tenants = key('v', job.cls, job.mdl)
  if not call('ZSCORE', tenants, job.tn) then
    local current = tonumber(call('GET', key('V', job.cls, job.mdl)) or 0)
    local own = tonumber(call('GET', key('lf', job.cls, job.tn, job.mdl)) or 0)
    call('ZADD', tenants, math.max(current, own), job.tn)
  end
  call('ZADD', key('b', job.cls, job.tn, job.mdl), call('INCR', key('seq')), id)
end
