#!lua
-- Accept a job, or say why not. Repeating it with the same id changes nothing.
-- KEYS    P
-- ARGV    id body hash tenant idempotency-key('' for none) model class cost est seed timeout_ms('' for none)
--         queue_timeout_ms('' for none) metadata retention cap_jobs cap_tenant_jobs cap_bytes subscriber('' for none)
--         several(0|1: sequences) attachment('' for none) again(0|1: a server that came back may have forgotten it)
-- Reply   {'ok', id, created, time of acceptance in ms} | {'conflict', id} | {'unknown', model...} | {'full', what}
-- All keys of a cell carry the hash tag of its prefix P:
--   P:j:<id>              HASH   st mdl tn cls lane n ep crashes cn solo sus tok ftok wid cx gw dl qdl qt dg ct sts ft
--                                body att bytes est cost seed meta err use pg idem ret run
--                                (status, model, tenant, class, where it waits, tokens stored, attempts, deaths of
--                                owners since it last got on, tokens stored at the latest, crashes that it was alone
--                                in, whether it runs as a suspect, claim token, token that finished
--                                it, worker, stop mark, subscribers, deadline, start-by limit and
--                                the time it leaves, digest of what its latest worker serves, times created/started/
--                                finished in ms, request, attachment, size of both, estimated prompt tokens,
--                                fair-queue cost, seed, metadata, error, tokens used, progress, idempotency key, retention, run of the
--                                server that accepted it, if it has several sequences)
--   P:t:<id>  P:r:<id>    STREAM token log, STRING result
--   P:b:<class>:<tenant>:<model>          ZSET  backlog of a tenant by order of arrival
--   P:b:resume:<model>  P:b:solo:<model>  ZSET  jobs that come back; suspects, by the ms from which they may run
--                                             (one death's have the same)
--   P:b:resume:=<digest>:<model>  P:b:solo:=<digest>:<model>  ZSET  those of them with tokens, for equal workers only
--   P:bound:<model>       ZSET   all that wait for equal workers
--   P:v:<class>:<model>   ZSET   tenants with a backlog by virtual time;  P:V:<class>:<model> the current one
--   P:lf:<class>:<tenant>:<model>  STRING  virtual time of a tenant that left (expires)
--   P:pass:<model>        HASH   how often each lower class was passed over
--   P:bell:<model>        LIST   at most one element: there is work
--   P:bell:<model>:=<digest>  LIST  likewise, for workers that serve the very same (expires)
--   P:blocked:<model>     STRING there while work that fitted no claim has just rung the bell (expires)
--   P:L  P:D  P:x         ZSET   job by lease expiry, by deadline, "<id> <tenant>" by end of retention (ms)
--   P:jobs                ZSET   all job ids, and ":<tenant>:<id>" for each (score 0: sorted by id, hence by time)
--   P:q  P:q:<tenant>     HASH   queued, running, bytes (and queued:<model> in the first); zero is absent
--   P:i:<tenant>:<key>    STRING idempotency: "<id> <hash of the request>"
--   P:mended             STRING there for two seconds after damaged keys were mended (expires)
--   P:died:<wid>          STRING there while what a dead worker had is still coming back (expires)
--   P:c:<token>           STRING what a claim handed out, so that it can be repeated
--   P:W:<wid>  P:workers  STRING worker info with TTL, ZSET of workers by last heartbeat
--   P:in:<wid>  P:a:<id>  LIST   ids of questions about a worker's memory; the answer to one (both expire)
--   P:ask:<model>         LIST   questions to the tokenizer of a model (expires)
--   P:chat:<tenant>:<id>  STRING the latest job of a chat (expires)
--   P:pins:<model>        HASH   prefixes to keep resident, by "<tenant>:<name>"
--   P:models  P:reaper    HASH   model cards; the reaper's memory of the server it last saw
--   P:ev  P:dlq  P:seq    STREAM outbox of ended jobs, STREAM dead letters, arrival counter
--   P:probe               STRING written to find out whether the server takes writes (expires)
--   P:tasks:<app>  P:tasks-sent:<app>  P:tasks-due:<app>  HASH, ZSET, ZSET  Celery tasks that wait for jobs
--   P:aside:j:<id>  P:aside:t:<id>  what stood in the place of a job's hash or stream and was none (expires)
--   P:n:<subscriber>      channel: live entries
-- Scripts are atomic but not rolled back: check first, write last.

local P, call = KEYS[1], redis.call

-- Concatenated, not joined from a table: every script does this many times.
local function key(kind, a, b, c)
  if a == nil then return P .. ':' .. kind end
  if b == nil then return P .. ':' .. kind .. ':' .. a end
  if c == nil then return P .. ':' .. kind .. ':' .. a .. ':' .. b end
  return P .. ':' .. kind .. ':' .. a .. ':' .. b .. ':' .. c
end
-- The server's time in ms.
local clock = call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- Whether a command failed on what it found. What the user may not do is no damage: that ends the script.
local function is_error(reply)
  local problem = type(reply) == 'table' and reply.err
  if problem and (string.find(problem, 'The user executing') or string.find(problem, 'ACL failure')) then error(reply) end
  return problem
end
-- Fields of a job's hash. Another kind of key has none: one damaged job must not fail a call on many.

local function read(id, ...)
  local values = redis.pcall('HMGET', key('j', id), ...)
  if is_error(values) then return end
  return unpack(values)
end

local function fields(id, ...)
  local values, out = redis.pcall('HMGET', key('j', id), ...), {}
  if is_error(values) then return out end
  local names = {...}
  for i = 1, #names do out[names[i]] = values[i] end
  return out
end
-- How much is queued and running, in all and by tenant.

-- Never below zero: what a damaged job was counted as is not always known.
local function bump(hash, field, by)
  if call('HINCRBY', hash, field, by) <= 0 then call('HDEL', hash, field) end
end

local function count(tenant, field, by)
  bump(key('q'), field, by)
  bump(key('q', tenant), field, by)
end

local function count_queued(job, by)
  count(job.tn, 'queued', by)
  bump(key('q'), 'queued:' .. job.mdl, by)
end
-- Fair queueing inside a class: the tenant with the smallest virtual time goes next and pays its job's cost.

local function enter_class(id, job)
  local tenants = key('v', job.cls, job.mdl)
  if not call('ZSCORE', tenants, job.tn) then
    local current = tonumber(call('GET', key('V', job.cls, job.mdl)) or 0)
    local own = tonumber(call('GET', key('lf', job.cls, job.tn, job.mdl)) or 0)
    call('ZADD', tenants, math.max(current, own), job.tn)
  end
  call('ZADD', key('b', job.cls, job.tn, job.mdl), call('INCR', key('seq')), id)
end

local function leave_queue(id, job, price)
  if string.find(job.lane, '^resume') or string.find(job.lane, '^solo') then
    call('ZREM', key('b', job.lane, job.mdl), id)
    call('ZREM', key('bound', job.mdl), id)
    return
  end
  local tenants, backlog = key('v', job.lane, job.mdl), key('b', job.lane, job.tn, job.mdl)
  local paid = call('ZINCRBY', tenants, price, job.tn)
  call('ZREM', backlog, id)
  if call('EXISTS', backlog) == 0 then
    call('ZREM', tenants, job.tn)
    call('SET', key('lf', job.lane, job.tn, job.mdl), paid, 'EX', 3600)
  end
end

local function refund(job)
  local unused = tonumber(job.cost) - tonumber(job.est) - tonumber(job.n)
  if unused <= 0 then return end
  local tenants, left = key('v', job.cls, job.mdl), key('lf', job.cls, job.tn, job.mdl)
  if call('ZSCORE', tenants, job.tn) then
    call('ZINCRBY', tenants, -unused, job.tn)
  elseif call('EXISTS', left) == 1 then
    call('SET', left, math.max(0, tonumber(call('GET', left)) - unused), 'KEEPTTL')
  end
end
local function ring(model)
  local bell = key('bell', model)
  if call('LLEN', bell) == 0 then call('RPUSH', bell, '1') end
end

-- Wakes a worker that serves the very same. There may be none, ever.
local function ring_equals(model, digest)
  local bell = key('bell', model, '=' .. digest)
  if call('LLEN', bell) == 0 then call('RPUSH', bell, '1') end
  call('EXPIRE', bell, 60)
end
local id, body, hash, tenant, idem, model, class = unpack(ARGV, 1, 7)
local cost, est, seed, timeout, queue_timeout, meta, retention = unpack(ARGV, 8, 14)
local cap_jobs, cap_tenant, cap_bytes = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
local subscriber, several, attachment, again = ARGV[18], ARGV[19] == '1', ARGV[20], ARGV[21] == '1'
local size = #body + #attachment
local MOST_BYTES = 2097152  -- of one job

if call('EXISTS', key('j', id)) == 1 then return {'ok', id, 1, tonumber(read(id, 'ct') or '') or NOW} end
if idem ~= '' then
  local known = call('GET', key('i', tenant, idem))
  if known then
    local old, old_hash = string.match(known, '(%S+) (%S+)')
    if old_hash == hash then return {'ok', old, 0, 0} else return {'conflict', old} end
  end
end
if call('HEXISTS', key('models'), model) == 0 then return {'unknown', unpack(call('HKEYS', key('models')))} end
local total = call('HMGET', key('q'), 'queued', 'bytes')
local function full(what, queued, bytes)
  local known_jobs = call('ZCARD', key('jobs'))
  if queued > known_jobs or bytes > known_jobs * MOST_BYTES then
    return redis.error_reply('DAMAGED more is counted than there are jobs')
  end
  return {'full', what}
end
local queued, bytes = tonumber(total[1] or 0), tonumber(total[2] or 0)
local of_tenant = tonumber(call('HGET', key('q', tenant), 'queued') or 0)
if queued >= cap_jobs then return full('jobs', queued, 0) end
if of_tenant >= cap_tenant then return full('tenant', of_tenant, 0) end
if bytes + size > cap_bytes then return full('bytes', 0, bytes) end

local job = {'st', 'queued', 'mdl', model, 'tn', tenant, 'cls', class, 'lane', class, 'n', 0, 'ep', 0, 'crashes', 0,
  'ct', NOW, 'body', body, 'bytes', size, 'est', est, 'cost', cost, 'seed', seed, 'ret', retention}
local function note(field, value)
  job[#job + 1] = field
  job[#job + 1] = value
end

local due = math.huge
if meta ~= '' then note('meta', meta) end
if attachment ~= '' then note('att', attachment) end
if subscriber ~= '' then note('gw', subscriber) end
if timeout ~= '' then
  due = NOW + tonumber(timeout)
  note('dl', due)
end
if queue_timeout ~= '' then
  local start_by = NOW + tonumber(queue_timeout)
  note('qdl', start_by)
  note('qt', queue_timeout)
  due = math.min(due, start_by)
end
if idem ~= '' then note('idem', idem) end
if several then note('run', again and 'an earlier one' or string.match(call('INFO', 'server'), 'run_id:(%x+)')) end
call('HSET', key('j', id), unpack(job))
if due < math.huge then call('ZADD', key('D'), due, id) end
if idem ~= '' then call('SET', key('i', tenant, idem), id .. ' ' .. hash) end
call('ZADD', key('jobs'), 0, id, 0, ':' .. tenant .. ':' .. id)
local place = {mdl = model, tn = tenant, cls = class}
count_queued(place, 1)
count(tenant, 'bytes', size)
enter_class(id, place)
ring(model)
return {'ok', id, 1, NOW}
