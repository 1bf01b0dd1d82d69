#!lua flags=allow-oom
-- Hand out jobs: by class, inside a class those that come back first, then the tenant that got least.
-- Nothing is decided before this call. Repeating it with the same token hands out the same jobs.
-- KEYS    P
-- ARGV    model worker token max_jobs max_tokens lease_ms idle(0|1) digest('' if not known) of what the worker serves
--         and, where what runs gives way to higher classes, so that max_jobs and max_tokens are the room of high:
--         how many classes, from high on, have nothing that stays, jobs and tokens of normal, of batch,
--         (class guests tokens 'tenants that may have none')...
-- Reply   {now_ms, ms the oldest suspect waited, 1 if a job did not fit,
--         {id, ep, tenant, class, body, seed, deadline, n, solo, class it rose to or '', context of its trace or '', and of a
--         traced job its attempts and the ms of its first tokens, ms before which it was not to start or ''}...}
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
--- @include attempts
local model, worker, token = ARGV[1], ARGV[2], ARGV[3]
local max_jobs, budget, lease_ms, idle = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local digest = ARGV[8] or ''
local out, taken = {NOW, 0, 0}, {}

local function hand_out(id, job, solo, risen)
  local tries, first = '', ''
  if job.tp and job.tries then tries, first = job.tries, read(id, 'f1') or '' end
  out[#out + 1] = {id, job.ep, job.tn, job.cls, job.body, job.seed, job.dl or '', job.n, solo and 1 or 0, risen or '',
    job.tp or '', tries, first, job.nb or ''}
end

local before = call('GET', key('c', token))
if before then
  for id, risen in string.gmatch(before, '([^%s=]+)=?(%S*)') do
    local job = intact(id)
    if job and read(id, 'tok') == token then
      call('ZADD', key('L'), NOW + lease_ms, id)
      hand_out(id, job, read(id, 'sus'), risen)
    end
  end
  return out
end

-- All else is one function, as functions inside of it are cheaper to make.
local function serve()
  -- Jobs that come back, and suspects, are mostly not there: nothing more is asked about them then.
  local lanes, suspects = {}, {}
  if call('EXISTS', key('b', 'resume', model), key('b', 'solo', model), key('bound', model)) > 0 then
    lanes, suspects = lanes_of('resume', digest), lanes_of('solo', digest)
  end
  local held, any_held = {}, false  -- classes whose lane is paused
  if call('EXISTS', key('pauses')) == 1 then
    --- @include pauses
    for _, class in ipairs({'high', 'normal', 'batch'}) do
      local _, since = pauses_of(class, model)
      held[class] = since > 0
      any_held = any_held or held[class]
    end
  end
  --- @include turns

  local is_more = false  -- a tenant of which something was taken has more

  -- At its first claim a job is counted among those of its model and its key, where these have caps.
  local function take_place(hash, job)
    if caps_of(job.tn, model)[2] then
      call('HSET', hash, 'rm', 1)
      bump(key('q', job.tn), count_of_model(model), 1)
    end
    if cap_of_key(job.tn, model, job.key) then
      call('HSET', hash, 'rk', 1)
      bump(key('q', job.tn), count_of_key(job.key), 1)
    end
  end

  -- `virtual_time` is that of a tenant whose turn it was in a class.
  local function take(id, job, lane, virtual_time, risen)
    if job.lane == job.cls then
      if virtual_time then call('SET', key('V', job.cls, model), virtual_time, 'EX', 86400) end
      is_more = leave_queue(id, job, price_of(job, tonumber(job.cost))) or is_more
    else
      leave_queue(id, job, 0)
    end
    local hash = key('j', id)
    job.ep = string.format('%d', job.ep + 1)
    call('HSET', hash, 'st', 'running', 'tok', token, 'wid', worker, 'ep', job.ep, 'sts', job.sts or NOW, 'dg', digest,
    'ls', lease_ms, 'tries', attempt_begun(job.tries, job.n, worker))
    local is_suspect = string.sub(lane, 1, 4) == 'solo'
    if is_suspect then
      call('HSET', hash, 'sus', 1)
      call('HDEL', hash, 'qdl', 'lane', 'wk', 'ltr', 'pz')
    else
      call('HDEL', hash, 'qdl', 'lane', 'sus', 'wk', 'ltr', 'pz')
    end
    call('ZADD', key('L'), NOW + lease_ms, id)
    if job.dl then call('ZADD', key('D'), job.dl, id) else call('ZREM', key('D'), id) end
    count_queued(job, -1)
    count(job.tn, 'running', 1)
    if job.lane == job.cls then take_place(hash, job) end
    taken[#taken + 1] = risen and id .. '=' .. risen or id
    -- Here and not at the end: a call that fails half-way on something damaged gives the same when it is repeated.
    call('SET', key('c', token), table.concat(taken, ' '), 'PX', math.max(lease_ms, 10000))
    hand_out(id, job, is_suspect, risen)
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

  local function is_unstarted(job)
    if not is_past(job.qdl) or not job.pz and call('EXISTS', key('pauses')) == 0 then return is_past(job.qdl) end
    --- @include pauses
    return NOW >= start_limit(job)
  end

  -- Whether a job may still start. One that may not ends here; nil: not yet, as the server may have forgotten its end.
  local function is_startable(id, job, lane, tenant)
    if not job or job.st ~= 'queued' or job.lane ~= lane or job.mdl ~= model or (tenant and job.tn ~= tenant) then
      discard(id, lane, tenant)
      return false
    end
    if is_past(job.dl) or is_unstarted(job) then
      --- @include grace
      if NOW < grace() then return nil end
      --- @include unowned
      if is_past(job.dl) then expire(id, LATE) else expire_unstarted(id) end
      return false
    end
    return true
  end

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

  -- Hand out what comes first. Whether nothing is left for which there is room, or which may start.
  local function take_next()
    local id, lane, class, heads, risen = next_job()
    if not id then return true end
    local turn, job = heads[class], intact(id)
    local startable = is_startable(id, job, lane, lane == class and turn[1] or nil)
    if not startable then
      turns, coming = {}, {}
      return startable == nil
    end
    if job.cls ~= class then  -- a clock that went wrong put it elsewhere in its lane
      coming[lane] = {id, job.cls}
      return false
    end
    if lane == class and is_key_at_cap(job.tn, model, job.key) then
      --- @include holding
      hold(id, job, leave_queue)
      turns[class] = nil
      return false
    end
    local as = find_room(job, risen)
    if as then
      if as == 'room' then note_passed_over(class, heads) end
      take(id, job, lane, as == 'room' and turn[2], risen)
      if lane == class then turns[class] = nil else coming[lane] = nil end
    elseif lane ~= class and rooms[class][1] <= 0 then
      coming[lane] = {}  -- no guest
    else
      turns[class] = nil
      close(class, risen)
      out[3] = 1
    end
    return false
  end

  -- What waits by the counter, but for suspects and for what only equal workers may go on with.
  local function count_left()
    local left = tonumber(call('HGET', key('q'), 'queued:' .. model) or 0)
    return suspects[1] and left - call('ZCARD', key('b', 'solo', model)) - call('ZCARD', key('bound', model)) or left
  end

  -- Whether others may take of it: not while all that is left is of tenants at their caps.
  local function is_work_left()
    if is_more then return true end
    if count_left() <= 0 then return false end
    if lanes[1] or not any_held and call('EXISTS', key('parked', model)) == 0 then return true end
    for _, class in ipairs(CLASSES) do
      if not held[class] and call('EXISTS', key('v', class, model)) == 1 then return true end
    end
    return false
  end

  -- Work that is left may fit another worker, but must not wake this one over and over.
  local function tell_others()
    if #taken > 0 or call('SET', key('blocked', model), 1, 'NX', 'PX', 200) then
      if is_work_left() then ring(model) end
      if digest ~= '' and lanes[1] and call('EXISTS', key('b', lanes[1], model)) == 1 then ring(model, '=' .. digest) end
    end
  end

  -- What this worker has no room for it leaves to those that have, and is not woken by it.
  local function tell_those_with_room()
    coming = {}
    for _, class in ipairs(CLASSES) do
      if rooms[class][1] <= 0 and not misfits[class] then
        local lane = coming_back(class)
        if lane then
          local bound = string.match(lane, '=.+')
          ring(model, bound and bound .. ':' .. class or '=' .. class)
        end
        if not held[class] and call('EXISTS', key('v', class, model)) == 1 then ring(model, '=' .. class) end
      end
    end
  end

  for _, lane in ipairs(idle and suspects or {}) do
    if #taken == 0 then take_suspects(lane) end
  end
  local emptied = false
  if #taken == 0 then
    for _ = 1, max_jobs + 256 do  -- bounds the expired jobs that one call clears away
      emptied = take_next()
      if emptied then break end
    end
    if emptied and #taken == 0 and rooms.batch[1] > 0 and not any_held and count_left() > 0 then
      --- @include waking
      if not look_after_parked(model) then return redis.error_reply('DAMAGED jobs wait in no lane') end
    end
  end
  for _, lane in ipairs(suspects) do
    local oldest = call('ZRANGE', key('b', lane, model), 0, 0, 'WITHSCORES')
    if oldest[2] and NOW >= tonumber(oldest[2]) then out[2] = math.max(out[2], 1, NOW - tonumber(oldest[2])) end
  end
  local listens = rooms.high[1] > 0 or rooms.high[4] > 0 or rooms.normal[4] > 0 or rooms.batch[4] > 0
  local leaves = several and emptied and listens
  if out[3] == 1 or (#taken > 0 and not leaves) then tell_others() end
  if leaves then tell_those_with_room() end
  publish()
  return out
end

return serve()
