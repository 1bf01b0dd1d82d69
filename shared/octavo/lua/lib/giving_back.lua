--- @include clock
--- @include job
--- @include counters
--- @include bell
--- @include unowned
--- @include dead_letters
--- @include suspects
local GOT_ON = 64  -- tokens between two crashes: those were not the job's doing

-- What crashes its worker does so where it did before, as the next owner goes on from there. A job that got on between
-- was beside it, or lost its worker by chance.
local function count_crash(id, job)
  local got_on = tonumber(job.n) - (tonumber(job.cn) or 0) >= GOT_ON
  local crashes = got_on and 1 or tonumber(job.crashes) + 1
  call('HSET', key('j', id), 'crashes', crashes, 'cn', job.n)
  return crashes
end

-- The owner is gone, or gives the job back. What it published stays, and the next owner goes on from there.
local function give_back(id, crashed)
  local job = fields(id, 'mdl', 'tn', 'n', 'cx', 'crashes', 'cn', 'wid', 'ep', 'dl')
  if job.cx then
    end_marked(id, job.cx)
    return
  end
  local hash, crashes = key('j', id), tonumber(job.crashes)
  if crashed then crashes = count_crash(id, job) end
  if crashes >= DEAD then
    bury(id, job.wid, job.ep, 'dead_lettered')
    conclude_alone(id, 'failed', 'dead_lettered', 'the job was given up after ' .. crashes
      .. ' crashes of the worker that ran it: look at the worker log, then `octavo jobs requeue` it', true)
    return
  end
  local lane = crashes >= SUSPECT and 'solo' or 'resume'
  call('HDEL', hash, 'tok', 'pg')
  call('HSET', hash, 'st', 'queued', 'lane', lane)
  call('ZREM', key('L'), id)
  count(job.tn, 'running', -1)
  count_queued(job, 1)
  call('ZADD', key('b', lane, job.mdl), NOW, id)
  ring(job.mdl)
end
