--- @include keys
--- @include counters
-- Fair queueing inside a class: the tenant with the smallest virtual time goes next and pays its job's cost, divided by
-- the weight that it had when the job was accepted.

-- In 1024ths of a token, whose sums are exact: what is charged and what is given back are the same. A weight is in
-- thousandths.
local function price_of(job, cost)
  local weight = job.w and tonumber(job.w)
  return weight and weight > 0 and math.floor(cost * 1024000 / weight + 0.5) / 1024 or cost
end

-- True if its tenant has more jobs there that may be taken.
local function leave_queue(id, job, price)
  if job.ltr then call('ZREM', key('later'), id) end
  if string.find(job.lane, '^resume') or string.find(job.lane, '^solo') then
    call('ZREM', key('b', job.lane, job.mdl), id)
    call('ZREM', key('bound', job.mdl), id)
    if job.tn then bump(key('q', job.tn), 'back', -1) end
    return false
  end
  local tenants, backlog = key('v', job.lane, job.mdl), key('b', job.lane, job.tn, job.mdl)
  if job.wk then bump(key('q', job.tn), 'waiting k ' .. (job.key or ''), -1) end
  if job.hd and job.cls and job.key then call('ZREM', key('held', job.tn, job.key), job.cls .. ' ' .. id .. ' ' .. job.mdl) end
  local paid = call('ZADD', tenants, 'XX', 'INCR', price, job.tn)  -- none of a tenant that is parked
  call('ZREM', backlog, id)
  if not paid then return false end
  if call('EXISTS', backlog) == 1 then return true end
  call('ZREM', tenants, job.tn)
  call('SET', key('lf', job.lane, job.tn, job.mdl), paid, 'EX', 3600)
  return false
end

local function refund(job)
  local unused = tonumber(job.cost) - tonumber(job.est) - tonumber(job.n)
  if unused <= 0 then return end
  unused = price_of(job, tonumber(job.cost)) - price_of(job, tonumber(job.est) + tonumber(job.n))
  if call('ZADD', key('v', job.cls, job.mdl), 'XX', 'INCR', -unused, job.tn) then return end
  local left = key('lf', job.cls, job.tn, job.mdl)
  local paid = call('GET', left)
  if paid then call('SET', left, math.max(0, tonumber(paid) - unused), 'KEEPTTL') end
end
