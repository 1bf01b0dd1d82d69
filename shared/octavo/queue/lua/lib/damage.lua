--- @include clock
--- @include job
--- @include counters
--- @include fair
--- @include aside
--- @include terminal
--- @include live
--- @include dead_letters
--- @include intact
--- @include listing
local DAMAGED, DAMAGED_MESSAGE = 'job_damaged', 'something else than octavo changed this job on the server: what it '
  .. 'left is kept for a day under :aside:; submit the job again, and give octavo a server of its own'

local function is_stream(name)
  local kind = call('TYPE', name).ok
  return kind == 'none' or kind == 'stream'
end

-- Of an entry that can be ours.
local function last_offset(stream)
  local last = call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if not last then return '0', false end
  local offset, part = string.match(last[1], '(%d+)-(%d+)')
  return offset, part == '1'
end

-- Ends a job that cannot be taken through `conclude`: what was in its place moves aside, readers find its end.
-- `known` is where it was found, whatever its fields say.
local function end_damaged(id, known)
  local job = fields(id, 'st', 'mdl', 'tn', 'cls', 'lane', 'bytes', 'ct', 'gw', 'wid', 'idem', 'bt', 'nf', 'n', 'ep',
    'est', 'cost', 'chg', 'key', 'sts', 'tries', 'rm', 'wk', 'rk', 'hd', 'tp', 'ltr')
  for name, value in pairs(known) do job[name] = value end
  local hash, stream, problem = key('j', id), key('t', id), {DAMAGED, DAMAGED_MESSAGE}
  if job.st == 'queued' and job.lane and job.mdl then leave_queue(id, job, 0) end
  if job.tn then
    if job.st == 'running' then count(job.tn, 'running', -1) end
    if job.rm and job.mdl then bump(key('q', job.tn), 'running m ' .. job.mdl, -1) end
    if job.rk and job.mdl and job.key then
      --- @include holding
      free_place(job)
    end
    if job.st == 'queued' and job.mdl then count_queued(job, -1) end
    --- @include stored
    forget_stored(id, job.tn)
    if call('EXISTS', key('pk', job.tn)) == 1 then
      --- @include parking
      unpark(job.tn)
    end
    if is_number(job.bytes) then count(job.tn, 'bytes', -job.bytes) end
    if job.mdl and is_number(job.n) and is_number(job.ct) and (not job.sts or is_number(job.sts)) then
      --- @include usage
      note_usage(job, 'failed')
    end
    if job.chg and job.mdl and is_number(job.cost) and is_number(job.est) and is_number(job.n) and is_number(job.ep) then
      --- @include settling
      settle(job, used_by(job))
    end
  end
  if job.bt then
    --- @include batch_jobs
    settle_in_batch(id, job.bt)
  end
  if job.nf and job.tn then
    --- @include events
    note_end(id, job.nf, job.tn, 'failed', false, job.tp)
  end
  if not is_gone(id) then set_aside(hash) end
  if not is_stream(stream) then set_aside(stream) end
  local offset, has_end = last_offset(stream)
  local entry, ending = offset .. '-1', terminal('failed', offset, unpack(problem))
  if not has_end and is_error(redis.pcall('XADD', stream, entry, 'd', ending)) then
    set_aside(stream)  -- its last entry is not ours
    offset, entry = '0', '0-1'
    call('XADD', stream, entry, 'd', ending)
  end
  call('HSET', hash, 'st', 'failed', 'mdl', job.mdl or '?', 'tn', job.tn or '?', 'cls', CLASS[job.cls] and job.cls or 'normal',
    'n', offset, 'ep', 0, 'crashes', 0, 'ct', is_number(job.ct) and job.ct or NOW, 'ft', NOW,
    'err', cmsgpack.pack({1, 'x', unpack(problem)}))
  if job.tries then call('HSET', hash, 'tries', job.tries) end
  call('EXPIRE', hash, ASIDE_S)
  call('EXPIRE', stream, ASIDE_S)
  if job.idem and job.tn then call('EXPIRE', key('i', job.tn, job.idem), ASIDE_S) end
  call('ZREM', key('L'), id)
  call('ZREM', key('D'), id)
  list_job(id, job.tn or '?', job.bt)
  call('ZADD', key('x'), NOW + ASIDE_S * 1000, id .. ' ' .. (job.tn or '?'))
  bury(id, job.wid or '', 0, DAMAGED)
  tell(id, job.gw, entry, ending)
end
