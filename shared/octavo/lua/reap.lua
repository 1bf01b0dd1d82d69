#!lua flags=allow-oom
-- Take jobs from owners whose lease ran out, end what is past its deadline, forget what is past its retention.
-- Every gateway and worker calls it about once a second.   -> number of jobs changed
local LIMIT = 100
local GRACE_MS = 3000   -- after a restart or a pause of the server owners get time to renew before they lose jobs
local PAUSE_MS = 5000
local function due(set) return redis.call('ZRANGEBYSCORE', key(set), '-inf', NOW, 'LIMIT', 0, LIMIT) end

local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local seen = redis.call('HMGET', key('reaper'), 'run', 'at', 'grace')
local grace = tonumber(seen[3] or 0)
if seen[1] and (seen[1] ~= run or NOW - tonumber(seen[2]) > PAUSE_MS) then grace = NOW + GRACE_MS end
redis.call('HSET', key('reaper'), 'run', run, 'at', NOW, 'grace', grace)

local changed = 0
if NOW >= grace then
  for _, id in ipairs(due('L')) do
    redis.call('ZREM', key('L'), id)
    if redis.call('HGET', key('j', id), 'st') == 'running' then
      give_back(id, true)
      changed = changed + 1
    end
  end
end
for _, id in ipairs(due('D')) do
  local job = fields(id, 'st', 'cx', 'dl')
  if job.st == 'queued' then
    expire(id, (job.dl and NOW >= tonumber(job.dl)) and LATE or UNSTARTED)
    changed = changed + 1
  elseif job.st == 'running' and not job.cx then
    mark_stop(id, 'expired')
    changed = changed + 1
  elseif job.st == 'running' then
    end_marked(id, job.cx)
    changed = changed + 1
  else
    redis.call('ZREM', key('D'), id)
  end
end
for _, id in ipairs(due('x')) do
  redis.call('ZREM', key('x'), id)
  redis.call('ZREM', key('jobs'), id)
end
redis.call('ZREMRANGEBYSCORE', key('workers'), '-inf', NOW - 60000)
publish()
return changed
