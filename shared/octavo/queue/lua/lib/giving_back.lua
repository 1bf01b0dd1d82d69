--- @include clock
--- @include job
--- @include counters
--- @include bell
--- @include unowned
--- @include dead_letters
--- @include lanes
--- @include tally
--- @include attempts
-- Jobs without an owner: given back, or left by an engine or a worker that died. docs/protocol.md has the states.
local GOT_ON = 64   -- tokens between two deaths: the first was not the job's doing
local GIVEN_UP = 3  -- crashes of an engine that ran nothing but this job
local WAIT_MS, LONGEST_WAIT_MS = 1000, 30000  -- before a job whose engines are killed runs alone again

-- One that waits for an equal worker gets the time again that it had for its start.
local function start_within(id, wait, deadline)
  local latest = NOW + wait
  call('HSET', key('j', id), 'qdl', latest)
  call('ZADD', key('D'), math.min(latest, tonumber(deadline) or latest), id)
end

-- `kind` is 'resume' or 'solo', `at` the time from which the job may run, `why` it has no owner any more.
local function requeue(id, job, kind, at, why)
  local hash, lane = key('j', id), lane_of(kind, job.dg, job.n)
  call('HDEL', hash, 'tok', 'pg', 'ls')
  call('HSET', hash, 'st', 'queued', 'lane', lane, 'tries', attempt_over(job.tries, job.n, why))
  call('ZREM', key('L'), id)
  count(job.tn, 'running', -1)
  bump(key('q', job.tn), 'back', 1)
  count_queued(job, 1)
  call('ZADD', key('b', lane, job.mdl), kind == 'resume' and at * (SHARE[job.cls] or 1) or at, id)
  if lane == kind then return ring(job.mdl) end
  call('ZADD', key('bound', job.mdl), at, id)
  if tonumber(job.qt) then start_within(id, tonumber(job.qt), job.dl) end
  ring(job.mdl, '=' .. job.dg)
end

-- Its owner has no more use for it. What it published stays, and the next owner goes on from there.
local function give_back(id)
  local job = fields(id, 'mdl', 'tn', 'cls', 'n', 'cx', 'sus', 'dl', 'dg', 'qt', 'tries')
  if job.cx then end_marked(id, job.cx) else requeue(id, job, job.sus and 'solo' or 'resume', NOW, 'back') end
end

-- Counts one more death. What kills its owner does so where it did before, as the next owner goes on from there.
local function count_death(id, alone)
  local job = fields(id, 'mdl', 'tn', 'cls', 'n', 'cx', 'crashes', 'cn', 'solo', 'wid', 'ep', 'dl', 'dg', 'qt', 'tries')
  job.got_on = tonumber(job.n) - (tonumber(job.cn) or 0) >= GOT_ON
  job.crashes = job.got_on and 1 or tonumber(job.crashes) + 1
  job.solo = (job.got_on and 0 or tonumber(job.solo) or 0) + (alone and 1 or 0)
  call('HSET', key('j', id), 'crashes', job.crashes, 'cn', job.n, 'solo', job.solo)
  return job
end

-- Those to run apart from all others: of what did not get on, the jobs with most deaths, half of all at most. A job that
-- kills its owner is in every death, so their number halves with each until it is alone.
local function suspects_of(ids, jobs, least)
  local stuck, most, apart = 0, least, {}
  for _, id in ipairs(ids) do
    if jobs[id] and not jobs[id].got_on then
      stuck = stuck + 1
      most = math.max(most, jobs[id].crashes)
    end
  end
  local left = math.max(1, math.floor(stuck / 2))
  for i = #ids, 1, -1 do  -- from the latest: what kills at all mostly does so at once
    local job = jobs[ids[i]]
    if left > 0 and job and not job.got_on and job.crashes == most then
      apart[ids[i]], left = true, left - 1
    end
  end
  return apart
end

-- When a suspect may run: one whose owners are killed is no reason to keep all others waiting.
local function due_time(job, alone, crashed)
  if not alone or crashed or job.crashes < 2 then return NOW end
  return NOW + math.min(LONGEST_WAIT_MS, WAIT_MS * 2 ^ (job.crashes - 2))
end

-- Their owner died, which is one event however many jobs it had. `crashed`: the engine died of what it computed, and
-- not because something outside killed it, or its host. `late`: others were counted for this death already. `why` is
-- what the attempt gets to say.
local function owner_died(ids, crashed, late, why)
  local alone, jobs = #ids == 1 and not late, {}
  for _, id in ipairs(ids) do
    local mark = read(id, 'cx')
    if mark then end_marked(id, mark) else jobs[id] = count_death(id, alone and crashed) end
  end
  local apart = late and {} or suspects_of(ids, jobs, crashed and 1 or 2)
  for id, job in pairs(jobs) do
    add_to_tally('takeovers', job.mdl)
    if job.solo >= GIVEN_UP then
      bury(id, job.wid, job.ep, 'dead_lettered')
      conclude_alone(id, 'failed', 'dead_lettered', 'the job was given up: ' .. job.solo .. ' engines crashed while they '
        .. 'ran nothing else; look at the worker log, then `octavo jobs requeue` it', true)
    elseif apart[id] then
      requeue(id, job, 'solo', due_time(job, alone, crashed), why)
    else
      requeue(id, job, 'resume', NOW, why)
    end
  end
end
