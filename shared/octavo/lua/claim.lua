#!lua flags=allow-oom
-- Hand out jobs: those that come back first, then by class and, inside a class, the tenant that got least.
-- Nothing is decided before this call. Repeating it with the same token hands out the same jobs.
-- KEYS    P
-- ARGV    model worker token max_jobs max_tokens lease_ms idle(0|1)
-- Reply   {now_ms, ms the oldest suspect waited, {id, ep, tenant, class, body, seed, deadline, n, solo}...}
-- Events  ends of late and damaged jobs to subscribers and P:ev, of the latter to P:dlq
--- @include clock
--- @include job
--- @include counters
--- @include fair
--- @include bell
--- @include live
--- @include intact
--- @include suspects
local model, worker, token = ARGV[1], ARGV[2], ARGV[3]
local max_jobs, budget, lease_ms, idle = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
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
  call('HSET', hash, 'st', 'running', 'tok', token, 'wid', worker, 'ep', job.ep, 'sts', job.sts or NOW)
  call('HDEL', hash, 'qdl', 'lane')
  call('ZADD', key('L'), NOW + lease_ms, id)
  if job.dl then call('ZADD', key('D'), job.dl, id) else call('ZREM', key('D'), id) end
  count_queued(job, -1)
  count(job.tn, 'running', 1)
  taken[#taken + 1] = id
  hand_out(id, job, lane == 'solo')
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

local function next_job()
  local id = first(key('b', 'resume', model))
  if id then return id, 'resume' end
  local class, heads = next_class()
  if not class then return nil end
  return first(key('b', class, heads[class][1], model)), class, heads
end

-- A damaged job leaves the queue, or it would block all behind it.
local function discard(id, lane, tenant)
  local known, status = {st = 'queued', lane = lane, mdl = model, tn = tenant}, read(id, 'st')
  if is_gone(id) or (status and status ~= 'queued') then
    leave_queue(id, known, 0)
  else
    --- @include damage
    end_damaged(id, known)
  end
end

local function is_past(deadline) return deadline and NOW >= tonumber(deadline) end

-- Whether a job may still start. One that may not ends here.
local function is_startable(id, job, lane, tenant)
  if not job then
    discard(id, lane, tenant)
    return false
  end
  if is_past(job.qdl) or is_past(job.dl) then
    --- @include unowned
    expire(id, is_past(job.qdl) and UNSTARTED or LATE)
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
      hand_out(id, job, tonumber(job.crashes) >= SUSPECT)
    end
  end
  return out
end

local blocked, solos = false, key('b', 'solo', model)
if idle and max_jobs > 0 then
  local id, job = first(solos), nil
  while id do
    job = intact(id)
    if is_startable(id, job, 'solo') then break end
    id = first(solos)
  end
  if id then take(id, job, 'solo') end
end
if #taken == 0 then
  for _ = 1, max_jobs + 256 do  -- bounds the expired jobs that one call clears away
    if #taken >= max_jobs then break end
    local id, lane, heads = next_job()
    if not id then break end
    local head, job = heads and heads[lane] or {}, intact(id)
    if is_startable(id, job, lane, head[1]) then
      local fits = tonumber(job.est) <= budget or (idle and #taken == 0)
      if not fits then blocked = true break end
      budget = budget - tonumber(job.est)
      if heads then note_passed_over(lane, heads) end
      take(id, job, lane, head[2])
    end
  end
end

if #taken > 0 then call('SET', key('c', token), table.concat(taken, ' '), 'PX', math.max(lease_ms, 10000)) end
local oldest = call('ZRANGE', solos, 0, 0, 'WITHSCORES')
if oldest[2] then out[2] = math.max(1, NOW - tonumber(oldest[2])) end
if #taken > 0 or blocked then
  local left = tonumber(call('HGET', key('q'), 'queued:' .. model) or 0) - call('ZCARD', solos)
  -- Work that does not fit here may fit another worker, but must not wake this one over and over.
  if left > 0 and (#taken > 0 or call('SET', key('blocked', model), 1, 'NX', 'PX', 200)) then ring(model) end
end
publish()
return out
