--- @include keys
-- Fair queueing inside a class: the tenant with the smallest virtual time goes next and pays its job's cost.

local function leave_queue(id, job, price)
  if string.find(job.lane, '^resume') or string.find(job.lane, '^solo') then
    call('ZREM', key('b', job.lane, job.mdl), id)
    call('ZREM', key('bound', job.mdl), id)
    return
  end
  local tenants, backlog = key('v', job.lane, job.mdl), key('b', job.lane, job.tn, job.mdl)
  local paid = call('ZINCRBY', tenants, price, job.tn)
  call('ZREM', backlog, id)
  if call('EXISTS', backlog) == 0 then
    call('ZREM', tenants, job.tn)
    call('SET', key('lf', job.lane, job.tn, job.mdl), paid, 'EX', 3600)
  end
end

local function refund(job)
  local unused = tonumber(job.cost) - tonumber(job.est) - tonumber(job.n)
  if unused <= 0 then return end
  local tenants, left = key('v', job.cls, job.mdl), key('lf', job.cls, job.tn, job.mdl)
  if call('ZSCORE', tenants, job.tn) then
    call('ZINCRBY', tenants, -unused, job.tn)
  elseif call('EXISTS', left) == 1 then
    call('SET', left, math.max(0, tonumber(call('GET', left)) - unused), 'KEEPTTL')
  end
end
