#!lua flags=allow-oom
-- Store tokens of up to 64 sequences. An offset that is already there is a duplicate, one beyond the end shows that
-- the server lost tokens; neither writes anything.
-- KEYS    P
-- ARGV    msgpack of {{id, token, start, count, payload}...}
-- Reply   {{ok | dup | rewind | fenced | cancel, tokens stored, '' or why to stop}...}
-- Events  stored entries to subscribers
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
local STOP_GRACE_MS = 10000   -- a worker that ignores a stop mark for so long loses the job

-- The owner finds the mark in its next reply. If it does nothing about it, the reaper ends the job without it.
local function mark_stop(id, reason, at)
  call('HSET', key('j', id), 'cx', reason)
  call('ZADD', key('D'), at or NOW + STOP_GRACE_MS, id)
end

-- The stop mark of a running job, set here if its deadline has passed.
local function stop_reason(id, mark, deadline)
  if mark then return mark == 'expired' and mark or 'cancelled' end
  if deadline and NOW >= (tonumber(deadline) or math.huge) then
    mark_stop(id, 'expired')
    return 'expired'
  end
end
-- A job's subscribers: names with spaces between them.

local function without(subscribers, gone)
  local kept = {}
  for subscriber in string.gmatch(subscribers, '%S+') do
    if subscriber ~= gone then table.insert(kept, subscriber) end
  end
  return table.concat(kept, ' ')
end

local function set_subscribers(id, subscribers)
  if subscribers == '' then call('HDEL', key('j', id), 'gw')
  else call('HSET', key('j', id), 'gw', subscribers) end
end
-- Live entries are collected, and each subscriber gets its own in one message when the script is done.
local told = {}  -- entries by the list of their job's subscribers

local function tell(id, subscribers, entry, payload)
  if not subscribers then return end
  local entries = told[subscribers]
  if not entries then
    entries = {}
    told[subscribers] = entries
  end
  entries[#entries + 1] = {id, entry, payload}
end

local function publish()
  local outgoing = {}
  for subscribers, entries in pairs(told) do
    for subscriber in string.gmatch(subscribers, '%S+') do
      local message = outgoing[subscriber] or {}
      for i = 1, #entries do message[#message + 1] = entries[i] end
      outgoing[subscriber] = message
    end
  end
  for subscriber, message in pairs(outgoing) do
    -- A user that may not publish stores tokens all the same: its readers ask for them.
    if redis.pcall('PUBLISH', key('n', subscriber), cmsgpack.pack(message)) == 0 then
      for _, entry in ipairs(message) do
        local subscribers = call('HGET', key('j', entry[1]), 'gw')
        if subscribers then set_subscribers(entry[1], without(subscribers, subscriber)) end
      end
    end
  end
end
-- The one script on the path of every token: its keys are concatenated without a call.
local out, hashes, streams = {}, P .. ':j:', P .. ':t:'
for i, item in ipairs(cmsgpack.unpack(ARGV[1])) do
  local id, token, start, tokens, payload = unpack(item)
  local hash = hashes .. id
  local job = call('HMGET', hash, 'st', 'tok', 'n', 'cx', 'gw', 'dl')
  local stored = tonumber(job[3] or 0)
  local state = 'ok'
  if job[1] ~= 'running' or job[2] ~= token then
    state = 'fenced'
  elseif start + tokens <= stored then
    state = 'dup'
  elseif start ~= stored then
    state = 'rewind'
  else
    stored = stored + tokens
    local entry = stored .. '-0'
    call('XADD', streams .. id, entry, 'd', payload)
    call('HSET', hash, 'n', stored)
    tell(id, job[5], entry, payload)
  end
  local stop = (job[4] or job[6]) and (state == 'ok' or state == 'dup') and stop_reason(id, job[4], job[6])
  out[i] = {stop and 'cancel' or state, stored, stop or ''}
end
publish()
return out
