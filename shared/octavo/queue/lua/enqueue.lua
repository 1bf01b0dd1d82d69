#!lua
-- Accept a job, or say why not. Repeating it with the same id changes nothing.
-- KEYS    P
-- ARGV    id body hash tenant idempotency-key('' for none) model class cost est seed timeout_ms('' for none)
--         queue_timeout_ms('' for none) metadata retention cap_jobs cap_tenant_jobs cap_bytes subscriber('' for none)
--         several(0|1: sequences) attachment('' for none) again(0|1: a server that came back may have forgotten it)
-- Reply   {'ok', id, created, time of acceptance in ms} | {'conflict', id} | {'unknown', model...} | {'full', what}
--- @include clock
--- @include job
--- @include counters
--- @include fair
--- @include bell
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
