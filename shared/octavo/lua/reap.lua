#!lua flags=allow-oom
-- Take jobs from owners whose lease ran out, end what is past its deadline, forget what is past its retention.
-- A job that something else has damaged ends; it holds up no other. Every gateway and worker calls it about once a second.
-- KEYS    P
-- ARGV    none
-- Reply   number of jobs changed
-- Events  ends of late, given-up and damaged jobs to subscribers and P:ev, the last two kinds to P:dlq
--- @include clock
--- @include job
--- @include intact
--- @include live
local LIMIT = 100
local GRACE_MS = 3000   -- after a restart or a pause of the server owners get time to renew before they lose jobs
local PAUSE_MS = 5000
local function due(set) return call('ZRANGEBYSCORE', key(set), '-inf', NOW, 'LIMIT', 0, LIMIT) end

local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')
local seen = call('HMGET', key('reaper'), 'run', 'at', 'grace')
local grace = math.min(tonumber(seen[3] or 0), NOW + GRACE_MS)  -- less if the clock was set back
if seen[1] and (seen[1] ~= run or NOW - tonumber(seen[2]) > PAUSE_MS) then grace = NOW + GRACE_MS end
call('HSET', key('reaper'), 'run', run, 'at', NOW, 'grace', grace)

local function take_back(id)
  call('ZREM', key('L'), id)
  if read(id, 'st') ~= 'running' then return 0 end
  --- @include giving_back
  give_back(id, true)
  return 1
end

local function end_late(id)
  --- @include unowned
  --- @include stops
  local status, mark, deadline = read(id, 'st', 'cx', 'dl')
  if status == 'queued' then
    expire(id, (deadline and NOW >= tonumber(deadline)) and LATE or UNSTARTED)
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
    if is_gone(id) or (status and status ~= 'queued' and status ~= 'running') then
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

if NOW >= grace then each('L', take_back) end
each('D', end_late)
for _, member in ipairs(due('x')) do
  local id, tenant = string.match(member, '^(%S+) ?(%S*)$')
  if tenant == '' then tenant = read(id, 'tn') or '?' end
  call('ZREM', key('x'), member, id .. ' ' .. tenant)
  call('ZREM', key('jobs'), id, ':' .. tenant .. ':' .. id)
end
call('ZREMRANGEBYSCORE', key('workers'), '-inf', NOW - 60000)
publish()
return changed
