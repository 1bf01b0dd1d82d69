#!lua flags=allow-oom
-- Take jobs from owners whose lease ran out, end what is past its deadline, begin what was to start later, forget what is
-- past its retention.
-- A job that something else has damaged ends; it holds up no other. Every gateway and worker calls it about once a second.
-- KEYS    P
-- ARGV    none
-- Reply   {number of jobs changed, the run of the server}
-- Events  ends of late, given-up and damaged jobs to subscribers and P:ev, the last two kinds to P:dlq
--- @include clock
--- @include grace
--- @include job
--- @include intact
--- @include live
--- @include listing
--- @include stored
--- @include paused
local LIMIT = 100
local MOST_BEGUN = 500  -- jobs whose time has come, a call
local function due(set) return call('ZRANGEBYSCORE', key(set), '-inf', NOW, 'LIMIT', 0, LIMIT) end

local until_when, seen_at = grace()
if seen_at - NOW > 1000 then
  --- @include set_back
  set_back(seen_at - NOW, seen_at)
end
call('HSET', key('reaper'), 'run', RUN, 'at', NOW, 'grace', until_when)

-- A worker's first lease that runs out shows its death. Those that it took later, or that the limit left out, follow.
local DEATH_MS = 60000
local function take_back(by_worker)
  --- @include giving_back
  for worker, ids in pairs(by_worker) do
    owner_died(ids, false, not call('SET', key('died', worker), 1, 'NX', 'PX', DEATH_MS), 'lapsed')
  end
end

local lapsed = {}
local function note_lapse(id)
  call('ZREM', key('L'), id)
  local status, worker = read(id, 'st', 'wid')
  if status ~= 'running' then return 0 end
  worker = worker or ''
  lapsed[worker] = lapsed[worker] or {}
  table.insert(lapsed[worker], id)
  return 1
end

local function end_late(id)
  --- @include unowned
  --- @include stops
  local job = fields(id, 'st', 'cx', 'dl', 'qdl', 'lane', 'cls', 'mdl', 'pz')
  local status, mark, deadline = job.st, job.cx, job.dl
  if status == 'queued' and mark then
    end_marked(id, mark)
  elseif status == 'queued' then
    if deadline and NOW >= tonumber(deadline) then
      expire(id, LATE)
    elseif tonumber(job.qdl) and NOW < start_limit(job) then
      local _, since = pauses_of(job.cls, job.mdl)
      if since > 0 then
        keep_paused(id, job, deadline)
      else
        call('ZADD', key('D'), math.min(start_limit(job), tonumber(deadline) or math.huge), id)
      end
      return 0
    else
      expire_unstarted(id)
    end
  elseif not mark then
    mark_stop(id, 'expired')
  else
    end_marked(id, mark)
  end
  return 1
end

local changed = 0
local function each(set, act)
  for _, id in ipairs(due(set)) do
    local status = read(id, 'st')
    if is_gone(id) or ENDED[status] then
      call('ZREM', key(set), id)
    elseif intact(id) then
      changed = changed + act(id)
    else
      --- @include damage
      end_damaged(id, {st = set == 'L' and 'running'})
      changed = changed + 1
    end
  end
end

if NOW >= until_when then
  each('L', note_lapse)
  if next(lapsed) then take_back(lapsed) end
  each('D', end_late)
end
let_go_on(LIMIT)
for _, id in ipairs(call('ZRANGEBYSCORE', key('later'), '-inf', NOW, 'LIMIT', 0, MOST_BEGUN)) do
  --- @include later
  local job = intact(id)
  call('ZREM', key('later'), id)
  if job and job.st == 'queued' and job.ltr then
    begin(id, job)
    changed = changed + 1
  end
end
for _, member in ipairs(due('x')) do
  local id, tenant = string.match(member, '^(%S*) ?(.*)$')
  if tenant == '' then tenant = read(id, 'tn') or '?' end
  call('ZREM', key('x'), member, id .. ' ' .. tenant)
  unlist_job(id, tenant)
  forget_stored(id, tenant)
end
call('ZREMRANGEBYSCORE', key('workers'), '-inf', NOW - 60000)
publish()
if changed == 0 and tonumber(call('HGET', key('q'), 'running') or 0) ~= call('ZCARD', key('L')) then
  return redis.error_reply('DAMAGED running jobs and leases do not match')
end
return {changed, RUN}
