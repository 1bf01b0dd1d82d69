#!lua flags=allow-oom
-- Hand out jobs: those that come back first, then by class and, inside a class, the tenant that got least.
-- Nothing is decided before this call. Repeating it with the same token hands out the same jobs.
-- ARGV: model worker token max_jobs max_tokens lease_ms idle(0|1)
-- -> {now_ms, ms the oldest suspect waited, {id, ep, tenant, class, body, seed, deadline, n, solo}...}
local model, worker, token = ARGV[1], ARGV[2], ARGV[3]
local max_jobs, budget, lease_ms, idle = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local CLASSES = {'high', 'normal', 'batch'}
local PATIENCE = {normal = 8, batch = 32}  -- a class passed over so often goes next
local out, taken = {NOW, 0}, {}

local function hand_out(id, solo)
  local job = fields(id, 'ep', 'tn', 'cls', 'body', 'seed', 'dl', 'n')
  table.insert(out, {id, job.ep, job.tn, job.cls, job.body, job.seed, job.dl or '', job.n, solo and 1 or 0})
end

local function take(id, job, lane)
  local hash = key('j', id)
  if job.lane == job.cls then
    redis.call('SET', key('V', job.cls, model), redis.call('ZSCORE', key('v', job.cls, model), job.tn), 'EX', 86400)
    leave_queue(id, job, tonumber(job.cost))
  else
    leave_queue(id, job, 0)
  end
  redis.call('HINCRBY', hash, 'ep', 1)
  redis.call('HSET', hash, 'st', 'running', 'tok', token, 'wid', worker)
  redis.call('HSETNX', hash, 'sts', NOW)
  redis.call('HDEL', hash, 'qdl', 'lane')
  redis.call('ZADD', key('L'), NOW + lease_ms, id)
  if job.dl then redis.call('ZADD', key('D'), job.dl, id) else redis.call('ZREM', key('D'), id) end
  count_queued(job, -1)
  count(job.tn, 'running', 1)
  table.insert(taken, id)
  hand_out(id, lane == 'solo')
end

local function first(set) return redis.call('ZRANGE', set, 0, 0)[1] end

local function waits(class) return redis.call('EXISTS', key('v', class, model)) == 1 end

local function next_class()
  for i = #CLASSES, 2, -1 do
    local class = CLASSES[i]
    local passed = tonumber(redis.call('HGET', key('pass', model), class) or 0)
    if passed >= PATIENCE[class] and waits(class) then return class end
  end
  for _, class in ipairs(CLASSES) do
    if waits(class) then return class end
  end
end

local function note_passed_over(chosen)
  local lower = false
  for _, class in ipairs(CLASSES) do
    if class == chosen then
      redis.call('HDEL', key('pass', model), class)
      lower = true
    elseif lower and waits(class) then
      redis.call('HINCRBY', key('pass', model), class, 1)
    end
  end
  redis.call('EXPIRE', key('pass', model), 3600)
end

local function next_job()
  local id = first(key('b', 'resume', model))
  if id then return id, 'resume' end
  local class = next_class()
  if not class then return nil end
  local tenant = first(key('v', class, model))
  return first(key('b', class, tenant, model)), class, tenant
end

-- Whether a job was damaged: it leaves the queue then, or it would block all behind it.
local function is_discarded(id, lane, tenant)
  if is_intact(id) then return false end
  local known = {st = 'queued', lane = lane, mdl = model, tn = tenant}
  local status = fields(id, 'st').st
  if is_gone(id) or (status and status ~= 'queued') then
    leave_queue(id, known, 0)
  else
    end_damaged(id, known)
  end
  return true
end

local function details(id)
  return fields(id, 'mdl', 'tn', 'cls', 'lane', 'dl', 'qdl', 'est', 'cost')
end

local function is_late(id, job)
  if job.qdl and NOW >= tonumber(job.qdl) then expire(id, UNSTARTED) return true end
  if job.dl and NOW >= tonumber(job.dl) then expire(id, LATE) return true end
  return false
end

local before = redis.call('GET', key('c', token))
if before then
  for id in string.gmatch(before, '%S+') do
    local job = fields(id, 'tok', 'crashes')
    if job.tok == token and is_intact(id) then
      redis.call('ZADD', key('L'), NOW + lease_ms, id)
      hand_out(id, tonumber(job.crashes) >= SUSPECT)
    end
  end
  return out
end

local blocked = false
if idle and max_jobs > 0 then
  local id = first(key('b', 'solo', model))
  while id and (is_discarded(id, 'solo') or is_late(id, details(id))) do id = first(key('b', 'solo', model)) end
  if id then take(id, details(id), 'solo') end
end
if #taken == 0 then
  for _ = 1, max_jobs + 256 do  -- bounds the expired jobs that one call clears away
    if #taken >= max_jobs then break end
    local id, lane, tenant = next_job()
    if not id then break end
    local job = details(id)
    if not is_discarded(id, lane, tenant) and not is_late(id, job) then
      local fits = tonumber(job.est) <= budget or (idle and #taken == 0)
      if not fits then blocked = true break end
      budget = budget - tonumber(job.est)
      if lane ~= 'resume' then note_passed_over(lane) end
      take(id, job, lane)
    end
  end
end

if #taken > 0 then redis.call('SET', key('c', token), table.concat(taken, ' '), 'PX', math.max(lease_ms, 10000)) end
local oldest = redis.call('ZRANGE', key('b', 'solo', model), 0, 0, 'WITHSCORES')
if oldest[2] then out[2] = math.max(1, NOW - tonumber(oldest[2])) end
local left = tonumber(redis.call('HGET', key('q'), 'queued:' .. model) or 0) - redis.call('ZCARD', key('b', 'solo', model))
-- Work that does not fit here may fit another worker, but must not wake this one over and over.
if left > 0 and (#taken > 0 or (blocked and redis.call('SET', key('blocked', model), 1, 'NX', 'PX', 200))) then
  ring(model)
end
publish()
return out
