--- @include clock
--- @include job
--- @include counters
--- @include fair
--- @include aside
--- @include live
--- @include usage
--- @include attempts

-- The last entry. With a result, readers of a stream that is lost find everything there.
local function write_end(id, entry, ending, result)
  local stream = key('t', id)
  if is_error(redis.pcall('XADD', stream, entry, 'd', ending)) then  -- it is none, or has entries that are not ours
    set_aside(stream)
    if not result then call('XADD', stream, entry, 'd', ending) end
  end
end

-- As `fields` has it, in one table that need not grow.
local function job_to_end(id)
  local found = redis.pcall('HMGET', key('j', id), 'st', 'tok', 'ftok', 'mdl', 'tn', 'cls', 'lane', 'n', 'ep', 'bytes', 'est',
    'cost', 'idem', 'ret', 'gw', 'ct', 'run', 'bt', 'nf', 'chg', 'key', 'sts', 'w', 'tries', 'kb', 'rm', 'wk', 'rk', 'hd',
    'tp', 'ltr')
  if is_error(found) then return {} end
  return {
    st = found[1], tok = found[2], ftok = found[3], mdl = found[4], tn = found[5], cls = found[6],
    lane = found[7], n = found[8], ep = found[9], bytes = found[10], est = found[11], cost = found[12],
    idem = found[13], ret = found[14], gw = found[15], ct = found[16], run = found[17], bt = found[18],
    nf = found[19], chg = found[20], key = found[21], sts = found[22], w = found[23], tries = found[24],
    kb = found[25], rm = found[26], wk = found[27], rk = found[28], hd = found[29], tp = found[30],
    ltr = found[31],
  }
end

-- The one way a job ends. `facts` are fields to set besides. `result` false: a job without an owner has none, and
-- readers rebuild it from the stream, which therefore lives as long as the result would have. `counts`: the tokens that
-- its owner tells.
local function conclude(id, job, status, ending, result, facts, redrivable, counts)
  local stream_s, result_s, idempotency_s = string.match(job.ret, '(%d+) (%d+) (%d+)')
  if job.nf then  -- before anything is counted: where this fails, the end is told again
    --- @include events
    note_end(id, job.nf, job.tn, status, job.is_cut, job.tp)
  end
  if job.st == 'queued' then
    leave_queue(id, job, 0)
    count_queued(job, -1)
  else
    count(job.tn, 'running', -1)
    facts[#facts + 1] = 'tries'
    facts[#facts + 1] = attempt_over(job.tries, job.n, status)
  end
  if job.rm then bump(key('q', job.tn), 'running m ' .. job.mdl, -1) end
  if job.rk then
    --- @include holding
    free_place(job)
  end
  if tonumber(job.ep) > 0 then refund(job) end
  if call('EXISTS', key('pk', job.tn)) == 1 then
    --- @include parking
    unpark(job.tn)
  end
  count(job.tn, 'bytes', -tonumber(job.bytes))
  if job.chg then
    --- @include settling
    settle(job, counts and counts[1] + counts[2] or used_by(job))
  end
  note_usage(job, status, counts)
  local entry = job.n .. '-1'
  write_end(id, entry, ending, result)
  if job.kb and result then
    --- @include stored
    note_result(id, job.tn, #result)
    facts[#facts + 1] = 'kb'
    facts[#facts + 1] = job.kb + #result
  end
  local is_kept = false
  if job.bt then
    --- @include batch_jobs
    is_kept = settle_in_batch(id, job.bt)
  end
  if is_kept then
    if result then call('SET', key('r', id), result) end
  elseif result then
    call('SET', key('r', id), result, 'EX', result_s)
    call('EXPIRE', key('t', id), stream_s)
  else
    call('EXPIRE', key('t', id), result_s)
  end
  local hash = key('j', id)
  call('HSET', hash, 'st', status, 'ft', NOW, unpack(facts))
  local request = redrivable and 'chg' or 'body'  -- goes too unless it may be asked again
  call('HDEL', hash, 'tok', 'cx', 'gw', 'lane', 'dl', 'qdl', 'qt', 'pg', 'ls', 'chg', 'rm', 'rk', 'wk', 'hd',
    'ltr', 'pz', request)
  -- Nothing of it was ever forgotten: whatever its sequences' order is, it stays.
  if job.run and job.run == string.match(call('INFO', 'server'), 'run_id:(%x+)') then call('HDEL', hash, 'run') end
  if not is_kept then
    call('EXPIRE', hash, result_s)
    if job.idem then call('EXPIRE', key('i', job.tn, job.idem), idempotency_s) end
    call('ZADD', key('x'), NOW + result_s * 1000, id .. ' ' .. job.tn)
  end
  call('ZREM', key('L'), id)
  call('ZREM', key('D'), id)
  call('XADD', key('ev'), 'MAXLEN', '~', 100000, '*', 'id', id, 'st', status, 'mdl', job.mdl, 'tn', job.tn,
    'n', job.n, 'ct', job.ct, 'ft', NOW)
  tell(id, job.gw, entry, ending)
end
