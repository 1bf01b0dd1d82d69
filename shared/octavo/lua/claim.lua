#!lua flags=allow-oom
-- Hand out jobs: by class, inside a class those that come back first, then the tenant that got least.
-- Nothing is decided before this call. Repeating it with the same token hands out the same jobs.
-- KEYS    P
-- ARGV    model worker token max_jobs max_tokens lease_ms idle(0|1) digest('' if not known) of what the worker serves
--         rooms('' for one of all classes: max_jobs, max_tokens), of each class as msgpack: jobs, tokens, 1 if nothing
--         runs that would not give way, guests, tokens for guests, tenants that none of them may be of. What is taken of
--         a class is taken from lower rooms, too; a guest is a job beyond the room, for which another tenant's gives way
-- Reply   {now_ms, ms the oldest suspect waited, whether a job did not fit,
--         {id, ep, tenant, class, body, seed, deadline, n, solo, class it rose to or ''}...}
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
local digest, several = ARGV[8] or '', ARGV[9] and ARGV[9] ~= ''
local CLASSES, RANK = {'high', 'normal', 'batch'}, {high = 1, normal = 2, batch = 3}
local PATIENCE = {normal = 8, batch = 32}  -- a class passed over so often goes next
local out, taken, passed, rooms, misfits = {NOW, 0, 0}, {}, nil, {}, {}

-- The room of each class: {jobs, tokens, 1 if it is as good as idle, guests, tokens for guests, tenants without guests}.
local function read_rooms()
  local one = {max_jobs, budget, idle and 1 or 0, 0, 0, {}}
  local given = several and cmsgpack.unpack(ARGV[9])
  for i, class in ipairs(CLASSES) do
    rooms[class] = given and given[i] or one
    for _, tenant in ipairs(rooms[class][6]) do rooms[class][6][tenant] = true end
  end
end

local function has_room(class) return rooms[class][1] > 0 or rooms[class][4] > 0 end

-- 'room' or 'guest': what a job may be handed out as; nil if it does not fit.
local function fits(job, class)
  local room, size = rooms[class], tonumber(job.est)
  if room[1] > 0 and (size <= room[2] or room[3] == 1) then return 'room' end
  if room[4] > 0 and size <= room[5] and not room[6][job.tn] then return 'guest' end
end

local function spend(job, class, as)
  local size, room = tonumber(job.est), rooms[class]
  if as == 'guest' then
    room[4], room[5], room[6][job.tn] = room[4] - 1, room[5] - size, true
    return
  end
  for i = RANK[class], several and #CLASSES or RANK[class] do
    room = rooms[CLASSES[i]]
    room[1], room[2], room[3] = room[1] - 1, room[2] - size, 0
  end
end

-- A job that does not fit holds up its class and those below; guests of its class may still fit. One that is `aged`
-- goes before higher classes, so what is left is kept for it: they get no more than what makes room for them.
local function close(class, aged)
  local left, closed = rooms[class], RANK[class]
  for i = 1, aged and several and closed - 1 or 0 do
    local room = rooms[CLASSES[i]]
    room[1], room[2] = room[1] - left[1], room[2] - math.max(0, left[2])
  end
  for i = closed, #CLASSES do
    local room = rooms[CLASSES[i]]
    if i > closed or room[1] <= 0 then room[4] = 0 end
    room[1] = 0
    misfits[CLASSES[i]] = true
  end
end

local function hand_out(id, job, solo, risen)
  out[#out + 1] = {id, job.ep, job.tn, job.cls, job.body, job.seed, job.dl or '', job.n, solo and 1 or 0, risen or ''}
end

-- `virtual_time` is that of a tenant whose turn it was in a class.
local function take(id, job, lane, virtual_time, risen)
  if job.lane == job.cls then
    if virtual_time then call('SET', key('V', job.cls, model), virtual_time, 'EX', 86400) end
    leave_queue(id, job, tonumber(job.cost))
  else
    leave_queue(id, job, 0)
  end
  local hash = key('j', id)
  job.ep = string.format('%d', job.ep + 1)
  call('HSET', hash, 'st', 'running', 'tok', token, 'wid', worker, 'ep', job.ep, 'sts', job.sts or NOW, 'dg', digest)
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
  taken[#taken + 1] = risen and id .. '=' .. risen or id
  -- Here and not at the end: a call that fails half-way on something damaged gives the same when it is repeated.
  call('SET', key('c', token), table.concat(taken, ' '), 'PX', math.max(lease_ms, 10000))
  hand_out(id, job, is_suspect, risen)
end

local function first(set) return call('ZRANGE', set, 0, 0)[1] end

local lanes, coming = lanes_of('resume', digest), {}

-- The first job of a lane and its class, the highest there; false if there is none.
local function comes_back(lane)
  if coming[lane] == nil then
    local head = call('ZRANGE', key('b', lane, model), 0, 0, 'WITHSCORES')
    coming[lane] = head[1] and {head[1], class_at(tonumber(head[2])) or read(head[1], 'cls') or 'batch'} or false
  end
  return coming[lane]
end

local function read_passed()
  local counts = call('HMGET', key('pass', model), 'normal', 'batch')
  passed = {normal = tonumber(counts[1] or 0), batch = tonumber(counts[2] or 0)}
end

local turns = {}  -- by class, until something of it is taken

-- The tenant whose turn it is in a class, and its virtual time. Beyond the room it is the first that may have a guest.
local function turn_of(class)
  local room, turn = rooms[class], turns[class]
  if turn then return turn end
  if room[1] > 0 then
    turn = call('ZRANGE', key('v', class, model), 0, 0, 'WITHSCORES')
  else
    turn = {}
    for _, tenant in ipairs(call('ZRANGE', key('v', class, model), 0, 255)) do
      if not room[6][tenant] then
        turn = {tenant}
        break
      end
    end
  end
  turns[class] = turn
  return turn
end

-- The class to take from: `heads` are the next tenant of each that waits and has room, or {} if only jobs that come back
-- do, and `risen` is the highest class among them that it goes before for its age.
local function next_class()
  local heads, highest = {}, nil
  for _, class in ipairs(CLASSES) do
    if has_room(class) then
      local head, returns = turn_of(class), false
      for _, lane in ipairs(lanes) do
        local back = comes_back(lane)
        returns = returns or (back and back[2] == class)
      end
      if head[1] or returns then
        heads[class] = head
        highest = highest or class
      end
    end
  end
  if not highest then return nil end
  if not passed then read_passed() end
  for i = #CLASSES, RANK[highest] + 1, -1 do
    local class = CLASSES[i]
    if heads[class] and rooms[class][1] > 0 and passed[class] >= PATIENCE[class] then return class, heads, highest end
  end
  return highest, heads
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
  while true do
    local class, heads, risen = next_class()
    if not class then return nil end
    for _, lane in ipairs(lanes) do
      local back = comes_back(lane)
      if back and back[2] == class then return back[1], lane, class, heads, risen end
    end
    local tenant = heads[class][1]
    local id = first(key('b', class, tenant, model))
    if id then return id, class, class, heads, risen end
    call('ZREM', key('v', class, model), tenant)  -- it has no backlog
    turns[class] = nil
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
  for id, risen in string.gmatch(before, '([^%s=]+)=?(%S*)') do
    local job = intact(id)
    if job and read(id, 'tok') == token then
      call('ZADD', key('L'), NOW + lease_ms, id)
      hand_out(id, job, read(id, 'sus'), risen)
    end
  end
  return out
end

-- What waits by the counter, but for suspects and for what only equal workers may go on with.
local function count_left()
  return tonumber(call('HGET', key('q'), 'queued:' .. model) or 0) - call('ZCARD', key('b', 'solo', model))
    - call('ZCARD', key('bound', model))
end

local suspects = lanes_of('solo', digest)

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
-- Hand out what comes first. Whether that may have been all for which there is room.
local function take_next()
  local id, lane, class, heads, risen = next_job()
  if not id then return true end
  local head, job = heads[class], intact(id)
  local startable = is_startable(id, job, lane, lane == class and head[1] or nil)
  if not startable then
    turns, coming = {}, {}
    return startable == nil
  end
  if job.cls ~= class then  -- an earlier version, or a clock that went wrong, put it elsewhere in its lane
    coming[lane] = {id, job.cls}
    return false
  end
  local as = fits(job, class)
  turns[class] = nil
  if as then
    spend(job, risen or class, as)
    note_passed_over(class, heads)
    take(id, job, lane, as == 'room' and head[2], risen)
    coming[lane] = nil
  elseif lane ~= class and rooms[class][1] <= 0 then
    coming[lane] = false  -- no guest
  else
    out[3] = 1
    close(class, risen)
  end
  return false
end

read_rooms()
local emptied = false
if #taken == 0 then
  for _ = 1, max_jobs + 256 do  -- bounds the expired jobs that one call clears away
    emptied = take_next()
    if emptied then break end
  end
  if emptied and #taken == 0 and rooms.batch[1] > 0 and count_left() > 0 then
    return redis.error_reply('DAMAGED jobs wait in no lane')
  end
end

for _, lane in ipairs(suspects) do
  local oldest = call('ZRANGE', key('b', lane, model), 0, 0, 'WITHSCORES')
  if oldest[2] and NOW >= tonumber(oldest[2]) then out[2] = math.max(out[2], 1, NOW - tonumber(oldest[2])) end
end
-- This worker goes on listening for classes that it has room for. Of what is left of the others it tells those that
-- have room for them.
local function pass_on()
  coming = {}
  for _, class in ipairs(CLASSES) do
    if rooms[class][1] <= 0 and not misfits[class] then
      if call('EXISTS', key('v', class, model)) == 1 then ring(model, '=' .. class) end
      for _, lane in ipairs(lanes) do
        local back, bound = comes_back(lane), string.match(lane, '=.+')
        if back and back[2] == class then ring(model, bound and bound .. ':' .. class or '=' .. class) end
      end
    end
  end
end

local function has_any_room()
  for _, class in ipairs(CLASSES) do
    if has_room(class) then return true end
  end
end

if several and emptied and has_any_room() then pass_on() end
if (#taken > 0 and not (several and emptied and has_any_room())) or out[3] == 1 then
  -- Work that does not fit here may fit another worker, but must not wake this one over and over.
  if #taken > 0 or call('SET', key('blocked', model), 1, 'NX', 'PX', 200) then
    if count_left() > 0 then ring(model) end
    if digest ~= '' and call('EXISTS', key('b', lanes[1], model)) == 1 then ring(model, '=' .. digest) end
  end
end
publish()
return out
