-- Shared by all scripts. KEYS[1] is the prefix P of the cell; all keys carry its hash tag:
--   P:j:<id>              HASH   st mdl tn cls lane n ep crashes cn tok ftok wid cx gw dl qdl ct sts ft
--                                body bytes est cost seed meta err use pg idem ret
--                                (status, model, tenant, class, where it waits, tokens stored, attempts, crashes
--                                since it last got on, tokens stored at the latest, claim token, token that finished
--                                it, worker, stop mark, subscribers, deadline, start-by limit, times created/started/
--                                finished in ms, request, its size, estimated prompt tokens, fair-queue cost, seed,
--                                metadata, error, tokens used, progress, idempotency key, retention)
--   P:t:<id>  P:r:<id>    STREAM token log, STRING result
--   P:b:<class>:<tenant>:<model>          ZSET  backlog of a tenant by order of arrival
--   P:b:resume:<model>  P:b:solo:<model>  ZSET  jobs that come back; suspects that must run alone (ms of return)
--   P:v:<class>:<model>   ZSET   tenants with a backlog by virtual time;  P:V:<class>:<model> the current one
--   P:lf:<class>:<tenant>:<model>  STRING  virtual time of a tenant that left (expires)
--   P:pass:<model>        HASH   how often each lower class was passed over
--   P:bell:<model>        LIST   at most one element: there is work
--   P:L  P:D  P:x         ZSET   job by lease expiry, by deadline, by end of retention (ms)
--   P:jobs                ZSET   all job ids (score 0: sorted by id, which is sorted by time)
--   P:q  P:q:<tenant>     HASH   queued, running, bytes (and queued:<model> in the first); zero is absent
--   P:i:<tenant>:<key>    STRING idempotency: "<id> <hash of the request>"
--   P:c:<token>           STRING what a claim handed out, so that it can be repeated
--   P:W:<wid>  P:workers  STRING worker info with TTL, ZSET of workers by last heartbeat
--   P:in:<wid>  P:a:<id> LIST   ids that await an answer about a worker's memory; that answer (both expire)
--   P:pins:<model>        HASH   prefixes to keep resident, by "<tenant>:<name>"
--   P:models  P:reaper    HASH   model cards; the reaper's memory of the server it last saw
--   P:ev  P:dlq  P:seq    STREAM outbox of ended jobs, STREAM dead letters, arrival counter
--   P:aside:j:<id>  P:aside:t:<id>  what stood in the place of a job's hash or stream and was none (expires)
--   P:n:<subscriber>      channel: live entries
-- Scripts are atomic but not rolled back: check first, write last.

local P = KEYS[1]
local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local STOP_GRACE_MS = 10000   -- a worker that ignores a stop mark for so long loses the job
local SUSPECT, DEAD = 2, 3    -- crashes after which a job must run alone, and is given up
local GOT_ON = 64             -- tokens between two crashes: those were not the job's doing
local ASIDE_S = 86400         -- how long what was found in the place of a job is kept
local DAMAGED, DAMAGED_MESSAGE = 'job_damaged', 'something else than octavo changed this job on the server: what it '
  .. 'left is kept for a day under :aside:; submit the job again, and give octavo a server of its own'

local function key(...) return P .. ':' .. table.concat({...}, ':') end

-- Of a key that is no job's hash nothing is known: one damaged job must not fail a call on many.
local function fields(id, ...)
  local values = redis.pcall('HMGET', key('j', id), ...)
  local out = {}
  if values.err then return out end
  for i, name in ipairs({...}) do out[name] = values[i] end
  return out
end

local function bump(hash, field, by)
  if redis.call('HINCRBY', hash, field, by) == 0 then redis.call('HDEL', hash, field) end
end

local function count(tenant, field, by)
  bump(key('q'), field, by)
  bump(key('q', tenant), field, by)
end

local function count_queued(job, by)
  count(job.tn, 'queued', by)
  bump(key('q'), 'queued:' .. job.mdl, by)
end

local function ring(model)
  local bell = key('bell', model)
  if redis.call('LLEN', bell) == 0 then redis.call('RPUSH', bell, '1') end
end

-- Live entries are collected per subscriber and leave in one message each when the script is done.
local outgoing = {}

local function tell(id, subscribers, entry, payload)
  if not subscribers then return end
  for subscriber in string.gmatch(subscribers, '%S+') do
    outgoing[subscriber] = outgoing[subscriber] or {}
    table.insert(outgoing[subscriber], {id, entry, payload})
  end
end

local function without(subscribers, gone)
  local kept = {}
  for subscriber in string.gmatch(subscribers, '%S+') do
    if subscriber ~= gone then table.insert(kept, subscriber) end
  end
  return table.concat(kept, ' ')
end

local function set_subscribers(id, subscribers)
  if subscribers == '' then redis.call('HDEL', key('j', id), 'gw')
  else redis.call('HSET', key('j', id), 'gw', subscribers) end
end

local function publish()
  for subscriber, messages in pairs(outgoing) do
    if redis.call('PUBLISH', key('n', subscriber), cmsgpack.pack(messages)) == 0 then
      for _, message in ipairs(messages) do
        local subscribers = redis.call('HGET', key('j', message[1]), 'gw')
        if subscribers then set_subscribers(message[1], without(subscribers, subscriber)) end
      end
    end
  end
end

-- Fair queueing inside a class: the tenant with the smallest virtual time goes next and pays its job's cost.

local function enter_class(id, job)
  local tenants = key('v', job.cls, job.mdl)
  if not redis.call('ZSCORE', tenants, job.tn) then
    local current = tonumber(redis.call('GET', key('V', job.cls, job.mdl)) or 0)
    local own = tonumber(redis.call('GET', key('lf', job.cls, job.tn, job.mdl)) or 0)
    redis.call('ZADD', tenants, math.max(current, own), job.tn)
  end
  redis.call('ZADD', key('b', job.cls, job.tn, job.mdl), redis.call('INCR', key('seq')), id)
end

local function enter_lane(id, job, lane)
  redis.call('ZADD', key('b', lane, job.mdl), NOW, id)
end

local function leave_queue(id, job, price)
  if job.lane == 'resume' or job.lane == 'solo' then
    redis.call('ZREM', key('b', job.lane, job.mdl), id)
    return
  end
  local tenants, backlog = key('v', job.lane, job.mdl), key('b', job.lane, job.tn, job.mdl)
  local paid = tonumber(redis.call('ZSCORE', tenants, job.tn) or 0) + price
  redis.call('ZREM', backlog, id)
  if redis.call('EXISTS', backlog) == 1 then
    redis.call('ZADD', tenants, paid, job.tn)
  else
    redis.call('ZREM', tenants, job.tn)
    redis.call('SET', key('lf', job.lane, job.tn, job.mdl), paid, 'EX', 3600)
  end
end

local function refund(job)
  local unused = tonumber(job.cost) - tonumber(job.est) - tonumber(job.n)
  if unused <= 0 then return end
  local tenants, left = key('v', job.cls, job.mdl), key('lf', job.cls, job.tn, job.mdl)
  if redis.call('ZSCORE', tenants, job.tn) then
    redis.call('ZINCRBY', tenants, -unused, job.tn)
  elseif redis.call('EXISTS', left) == 1 then
    redis.call('SET', left, math.max(0, tonumber(redis.call('GET', left)) - unused), 'KEEPTTL')
  end
end

-- A Terminal as octavo.wire writes it.
local function terminal(status, tokens, code, message)
  local problem = cjson.null
  if code then problem = {code, message} end
  return cmsgpack.pack({1, 'e', status, {0, tonumber(tokens), 0}, problem})
end

-- A foreign value under this key is kept, so that its origin can be found.
local function set_aside(name)
  local kept = key('aside', string.sub(name, #P + 2))
  redis.call('RENAME', name, kept)
  redis.call('EXPIRE', kept, ASIDE_S)
end

local function is_stream(name)
  local kind = redis.call('TYPE', name).ok
  return kind == 'none' or kind == 'stream'
end

-- The last entry. With a result, readers of a stream that is lost find everything there.
local function write_end(id, entry, ending, result)
  local stream = key('t', id)
  if redis.pcall('XADD', stream, entry, 'd', ending).err then  -- it is none, or has entries that are not ours
    set_aside(stream)
    if not result then redis.call('XADD', stream, entry, 'd', ending) end
  end
end

-- The one way a job ends. `result` false: without an owner there is none, and readers rebuild it
-- from the stream, which therefore lives as long as the result would have.
local function conclude(id, status, ending, result, token, problem, redrivable)
  local job = fields(id, 'st', 'mdl', 'tn', 'cls', 'lane', 'n', 'ep', 'bytes', 'est', 'cost', 'idem', 'ret', 'gw', 'ct')
  local stream_s, result_s, idempotency_s = string.match(job.ret, '(%d+) (%d+) (%d+)')
  if job.st == 'queued' then
    leave_queue(id, job, 0)
    count_queued(job, -1)
  else
    count(job.tn, 'running', -1)
  end
  if tonumber(job.ep) > 0 then refund(job) end
  count(job.tn, 'bytes', -tonumber(job.bytes))
  local entry = job.n .. '-1'
  write_end(id, entry, ending, result)
  if result then
    redis.call('SET', key('r', id), result, 'EX', result_s)
    redis.call('EXPIRE', key('t', id), stream_s)
  else
    redis.call('EXPIRE', key('t', id), result_s)
  end
  local hash = key('j', id)
  redis.call('HSET', hash, 'st', status, 'ft', NOW)
  redis.call('HDEL', hash, 'tok', 'cx', 'gw', 'lane', 'dl', 'qdl', 'pg')
  if not redrivable then redis.call('HDEL', hash, 'body') end
  if token then redis.call('HSET', hash, 'ftok', token) end
  if problem then redis.call('HSET', hash, 'err', problem) end
  redis.call('EXPIRE', hash, result_s)
  if job.idem then redis.call('EXPIRE', key('i', job.tn, job.idem), idempotency_s) end
  redis.call('ZREM', key('L'), id)
  redis.call('ZREM', key('D'), id)
  redis.call('ZADD', key('x'), NOW + result_s * 1000, id)
  redis.call('XADD', key('ev'), 'MAXLEN', '~', 100000, '*', 'id', id, 'st', status, 'mdl', job.mdl, 'tn', job.tn,
    'n', job.n, 'ct', job.ct, 'ft', NOW)
  tell(id, job.gw, entry, ending)
end

local function conclude_alone(id, status, code, message, redrivable)
  local problem = code and cmsgpack.pack({1, 'x', code, message})
  local ending = terminal(status, redis.call('HGET', key('j', id), 'n'), code, message)
  conclude(id, status, ending, false, nil, problem, redrivable)
end

local function expire(id, message)
  conclude_alone(id, 'expired', 'expired', message)
end

local LATE = 'the job did not end within its timeout_s: allow more time or ask for fewer tokens'
local UNSTARTED = 'no worker started the job within its queue_timeout_s: allow more time or add workers'

-- The owner finds the mark in its next reply. If it does nothing about it, the reaper ends the job without it.
local function mark_stop(id, reason)
  redis.call('HSET', key('j', id), 'cx', reason)
  redis.call('ZADD', key('D'), NOW + STOP_GRACE_MS, id)
end

local function end_marked(id, reason)
  if reason == 'expired' then expire(id, LATE) else conclude_alone(id, reason) end
end

-- The stop mark of a running job, set here if its deadline has passed.
local function stop_reason(id, job)
  if job.cx then return job.cx end
  if job.dl and NOW >= tonumber(job.dl) then
    mark_stop(id, 'expired')
    return 'expired'
  end
end

local function bury(id, worker, attempts, reason)
  redis.call('XADD', key('dlq'), 'MAXLEN', '~', 10000, '*', 'id', id, 'wid', worker, 'ep', attempts, 'why', reason)
end

-- Damaged jobs: their hash lacks what every transition relies on, because something else wrote to this server.

local WORDS = {'st', 'mdl', 'tn', 'cls', 'ret', 'body'}
local NUMBERS = {'n', 'ep', 'crashes', 'bytes', 'est', 'cost', 'ct', 'seed'}

local function is_gone(id) return redis.call('EXISTS', key('j', id)) == 0 end

-- Of a job that has not ended.
local function is_intact(id)
  local job = fields(id, 'st', 'mdl', 'tn', 'cls', 'ret', 'body', 'lane', 'dl', 'qdl', unpack(NUMBERS))
  for _, name in ipairs(WORDS) do
    if not job[name] then return false end
  end
  for _, name in ipairs(NUMBERS) do
    if not string.match(job[name] or '', '^%d+$') then return false end
  end
  if (job.dl and not tonumber(job.dl)) or (job.qdl and not tonumber(job.qdl)) then return false end
  if job.st == 'queued' and not job.lane then return false end
  return string.match(job.ret, '^%d+ %d+ %d+$') ~= nil
end

local function last_offset(stream)
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if not last then return '0', false end
  local offset, part = string.match(last[1], '(%d+)-(%d+)')
  return offset, part == '1'
end

-- Ends a job that cannot be taken through `conclude`: what was in its place moves aside, readers find its end.
-- `known` fills in for fields that are lost.
local function end_damaged(id, known)
  local job = fields(id, 'st', 'mdl', 'tn', 'cls', 'lane', 'bytes', 'ct', 'gw', 'wid', 'idem')
  for name, value in pairs(known) do job[name] = job[name] or value end
  local hash, stream, problem = key('j', id), key('t', id), {DAMAGED, DAMAGED_MESSAGE}
  if job.st == 'queued' and job.lane and job.mdl then leave_queue(id, job, 0) end
  if job.tn then
    if job.st == 'running' then count(job.tn, 'running', -1) end
    if job.st == 'queued' and job.mdl then count_queued(job, -1) end
    if tonumber(job.bytes) then count(job.tn, 'bytes', -tonumber(job.bytes)) end
  end
  set_aside(hash)
  if not is_stream(stream) then set_aside(stream) end
  local offset, has_end = last_offset(stream)
  local entry, ending = offset .. '-1', terminal('failed', offset, unpack(problem))
  if not has_end then redis.call('XADD', stream, entry, 'd', ending) end
  redis.call('HSET', hash, 'st', 'failed', 'mdl', job.mdl or '?', 'tn', job.tn or '?', 'cls', job.cls or 'normal',
    'n', offset, 'ep', 0, 'crashes', 0, 'ct', tonumber(job.ct) or NOW, 'ft', NOW,
    'err', cmsgpack.pack({1, 'x', unpack(problem)}))
  redis.call('EXPIRE', hash, ASIDE_S)
  redis.call('EXPIRE', stream, ASIDE_S)
  if job.idem and job.tn then redis.call('EXPIRE', key('i', job.tn, job.idem), ASIDE_S) end
  redis.call('ZREM', key('L'), id)
  redis.call('ZREM', key('D'), id)
  redis.call('ZADD', key('jobs'), 0, id)
  redis.call('ZADD', key('x'), NOW + ASIDE_S * 1000, id)
  bury(id, job.wid or '', 0, DAMAGED)
  tell(id, job.gw, entry, ending)
end

-- What crashes its worker does so where it did before, as the next owner goes on from there. A job that got on between
-- was beside it, or lost its worker by chance.
local function count_crash(id, job)
  local got_on = tonumber(job.n) - (tonumber(job.cn) or 0) >= GOT_ON
  local crashes = got_on and 1 or tonumber(job.crashes) + 1
  redis.call('HSET', key('j', id), 'crashes', crashes, 'cn', job.n)
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
  redis.call('HDEL', hash, 'tok', 'pg')
  redis.call('HSET', hash, 'st', 'queued', 'lane', lane)
  redis.call('ZREM', key('L'), id)
  count(job.tn, 'running', -1)
  count_queued(job, 1)
  enter_lane(id, job, lane)
  ring(job.mdl)
end
