#!lua flags=allow-oom
-- Hand out jobs: those that come back first, then by class and, inside a class, the tenant that got least.
-- Nothing is decided before this call. Repeating it with the same token hands out the same jobs.
-- KEYS    P
-- ARGV    model worker token max_jobs max_tokens lease_ms idle(0|1) digest('' if not known) of what the worker serves
-- Reply   {now_ms, ms the oldest suspect waited, {id, ep, tenant, class, body, seed, deadline, n, solo}...}
--         solo: a suspect, beside which nothing may run but what was handed out with it
-- Events  ends of late and damaged jobs to subscribers and P:ev, of the latter to P:dlq
--- @include clock
--- @include job
--- @include counters
--- @include fair
--- @include bell
--- @include live
--- @include intact
--- @include lanes
local model, worker, token = ARGV[1], ARGV[2], ARGV[3]
local max_jobs, budget, lease_ms, idle = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local digest = ARGV[8] or ''
local CLASSES = {'high', 'normal', 'batch'}
local PATIENCE = {normal = 8, batch = 32}  -- a class passed over so often goes next
local out, taken, passed = {NOW, 0}, {}, nil

local function hand_out(id, job, solo)
  out[#out + 1] = {id, job.ep, job.tn, job.cls, job.body, job.seed, job.dl or '', job.n, solo and 1 or 0}
end

-- `virtual_time` is that of a tenant whose turn it was in a class.
local function take(id, job, lane, virtual_time)
  if virtual_time and job.lane == job.cls then
    call('SET', key('V', job.cls, model), virtual_time, 'EX', 86400)
    leave_queue(id, job, tonumber(job.cost))
  else
    leave_queue(id, job, 0)
  end
  local hash = key('j', id)
  job.ep = string.format('%d', job.ep + 1)
  call('HSET', hash, 'st', 'running', 'tok', token, 'wid', worker, 'ep', job.ep, 'sts', job.sts or NOW, 'dg', digest,
    'ls', lease_ms)
  local is_suspect = string.sub(lane, 1, 4) == 'solo'
  if is_suspect then
    call('HSET', hash, 'sus', 1)
    call('HDEL', hash, 'qdl', 'lane')
  else
    call('HDEL', hash, 'qdl', 'lane', 'sus')
  end
  call('ZADD', key('L'), NOW + lease_ms, id)
  if job.dl then call('ZADD', key('D'), job.dl, id) else call('ZREM', key('D'), id) end
  count_queued(job, -1)
  count(job.tn, 'running', 1)
  taken[#taken + 1] = id
  -- Here and not at the end: a call that fails half-way on something damaged gives the same when it is repeated.
  call('SET', key('c', token), table.concat(taken, ' '), 'PX', math.max(lease_ms, 10000))
  hand_out(id, job, is_suspect)
end

local function first(set) return call('ZRANGE', set, 0, 0)[1] end

local function read_passed()
  local counts = call('HMGET', key('pass', model), 'normal', 'batch')
  passed = {normal = tonumber(counts[1] or 0), batch = tonumber(counts[2] or 0)}
end

-- `heads` is the next tenant of each class that waits, and its virtual time.
local function next_class()
  local heads = {}
  for _, class in ipairs(CLASSES) do
    local head = call('ZRANGE', key('v', class, model), 0, 0, 'WITHSCORES')
    if head[1] then heads[class] = head end
  end
  if not next(heads) then return nil end
  if not passed then read_passed() end
  for i = #CLASSES, 2, -1 do
    local class = CLASSES[i]
    if heads[class] and passed[class] >= PATIENCE[class] then return class, heads end
  end
  for _, class in ipairs(CLASSES) do
    if heads[class] then return class, heads end
  end
end

local function note_passed_over(chosen, heads)
  local counts, lower, noted = key('pass', model), false, false
  for _, class in ipairs(CLASSES) do
    if class == chosen then
      if passed[class] and passed[class] > 0 then call('HDEL', counts, class) end
      passed[class] = passed[class] and 0
      lower = true
    elseif lower and heads[class] then
      passed[class] = call('HINCRBY', counts, class, 1)
    end
    noted = noted or (passed[class] or 0) > 0
  end
  if noted then call('EXPIRE', counts, 3600) end
end

local returning = lanes_of('resume', digest)

local function next_job()
  while returning[1] do
    local id = first(key('b', returning[1], model))
    if id then return id, returning[1] end
    table.remove(returning, 1)  -- nothing comes back within this call
  end
  while true do
    local class, heads = next_class()
    if not class then return nil end
    local tenant = heads[class][1]
    local id = first(key('b', class, tenant, model))
    if id then return id, class, heads end
    call('ZREM', key('v', class, model), tenant)  -- it has no backlog
  end
end

-- A damaged job leaves the queue, or it would block all behind it.
local function discard(id, lane, tenant)
  local known, status = {st = 'queued', lane = lane, mdl = model, tn = tenant}, read(id, 'st')
  if is_gone(id) or status == 'running' or ENDED[status] then
    leave_queue(id, known, 0)
  else
    --- @include damage
    end_damaged(id, known)
  end
end

local function is_past(deadline) return deadline and NOW >= tonumber(deadline) end

-- Whether a job may still start. One that may not ends here; nil: not yet, as the server may have forgotten its end.
local function is_startable(id, job, lane, tenant)
  if not job or job.st ~= 'queued' or job.lane ~= lane or job.mdl ~= model or (tenant and job.tn ~= tenant) then
    discard(id, lane, tenant)
    return false
  end
  if is_past(job.qdl) or is_past(job.dl) then
    --- @include grace
    if NOW < grace() then return nil end
    --- @include unowned
    if is_past(job.qdl) then expire_unstarted(id) else expire(id, LATE) end
    return false
  end
  return true
end

local before = call('GET', key('c', token))
if before then
  for id in string.gmatch(before, '%S+') do
    local job = intact(id)
    if job and read(id, 'tok') == token then
      call('ZADD', key('L'), NOW + lease_ms, id)
      hand_out(id, job, read(id, 'sus'))
    end
  end
  return out
end

-- What waits by the counter, but for suspects and for what only equal workers may go on with.
local function count_left()
  return tonumber(call('HGET', key('q'), 'queued:' .. model) or 0) - call('ZCARD', key('b', 'solo', model))
    - call('ZCARD', key('bound', model))
end

local blocked, suspects = false, lanes_of('solo', digest)

-- Suspects of one death, which have one score, run together and apart from all others.
local function take_suspects(lane)
  local solos, group = key('b', lane, model), nil
  for _ = 1, max_jobs + 256 do
    local id, at = unpack(call('ZRANGEBYSCORE', solos, '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, 1))
    if not id or #taken >= max_jobs or (group and at ~= group) then return end
    local job = intact(id)
    local startable = is_startable(id, job, lane)
    if startable == nil then return end
    if startable then
      if group and tonumber(job.est) > budget then return end
      budget, group = budget - tonumber(job.est), at
      take(id, job, lane)
    end
  end
end

if idle then
  for _, lane in ipairs(suspects) do
    if #taken == 0 then take_suspects(lane) end
  end
end
if #taken == 0 then
  for _ = 1, max_jobs + 256 do  -- bounds the expired jobs that one call clears away
    if #taken >= max_jobs then break end
    local id, lane, heads = next_job()
    if not id then
      if #taken == 0 and count_left() > 0 then return redis.error_reply('DAMAGED jobs wait in no lane') end
      break
    end
    local head, job = heads and heads[lane] or {}, intact(id)
    local startable = is_startable(id, job, lane, head[1])
    if startable == nil then break end
    if startable then
      local fits = tonumber(job.est) <= budget or (idle and #taken == 0)
      if not fits then blocked = true break end
      budget = budget - tonumber(job.est)
      if heads then note_passed_over(lane, heads) end
      take(id, job, lane, head[2])
    end
  end
end

for _, lane in ipairs(suspects) do
  local oldest = call('ZRANGE', key('b', lane, model), 0, 0, 'WITHSCORES')
  if oldest[2] and NOW >= tonumber(oldest[2]) then out[2] = math.max(out[2], 1, NOW - tonumber(oldest[2])) end
end
if #taken > 0 or blocked then
  -- Work that does not fit here may fit another worker, but must not wake this one over and over.
  if #taken > 0 or call('SET', key('blocked', model), 1, 'NX', 'PX', 200) then
    if count_left() > 0 then ring(model) end
    if digest ~= '' and call('EXISTS', key('b', lanes_of('resume', digest)[1], model)) == 1 then
      ring_equals(model, digest)
    end
  end
end
publish()
return out
