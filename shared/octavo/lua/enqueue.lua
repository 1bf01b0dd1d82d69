#!lua
-- Accept a job, or say why not. Repeating it with the same id changes nothing.
-- ARGV: id body hash tenant idempotency-key('' for none) model class cost est seed timeout_ms('' for none)
--       queue_timeout_ms('' for none) metadata retention cap_jobs cap_tenant_jobs cap_bytes subscriber('' for none)
-- -> {'ok', id, created, time of acceptance in ms} | {'conflict', id} | {'unknown', model...} | {'full', what}
local id, body, hash, tenant, idem, model, class = unpack(ARGV, 1, 7)
local cost, est, seed, timeout, queue_timeout, meta, retention = unpack(ARGV, 8, 14)
local cap_jobs, cap_tenant, cap_bytes = tonumber(ARGV[15]), tonumber(ARGV[16]), tonumber(ARGV[17])
local subscriber = ARGV[18]

if redis.call('EXISTS', key('j', id)) == 1 then return {'ok', id, 1, tonumber(fields(id, 'ct').ct) or NOW} end
if idem ~= '' then
  local known = redis.call('GET', key('i', tenant, idem))
  if known then
    local old, old_hash = string.match(known, '(%S+) (%S+)')
    if old_hash == hash then return {'ok', old, 0, 0} else return {'conflict', old} end
  end
end
if redis.call('HEXISTS', key('models'), model) == 0 then
  return {'unknown', unpack(redis.call('HKEYS', key('models')))}
end
local total = redis.call('HMGET', key('q'), 'queued', 'bytes')
if tonumber(total[1] or 0) >= cap_jobs then return {'full', 'jobs'} end
if tonumber(redis.call('HGET', key('q', tenant), 'queued') or 0) >= cap_tenant then return {'full', 'tenant'} end
if tonumber(total[2] or 0) + #body > cap_bytes then return {'full', 'bytes'} end

local job = {mdl = model, tn = tenant, cls = class}
redis.call('HSET', key('j', id), 'st', 'queued', 'mdl', model, 'tn', tenant, 'cls', class, 'lane', class, 'n', 0,
  'ep', 0, 'crashes', 0, 'ct', NOW, 'body', body, 'bytes', #body, 'est', est, 'cost', cost, 'seed', seed,
  'ret', retention)
if meta ~= '' then redis.call('HSET', key('j', id), 'meta', meta) end
if subscriber ~= '' then set_subscribers(id, subscriber) end
local due = math.huge
if timeout ~= '' then
  due = NOW + tonumber(timeout)
  redis.call('HSET', key('j', id), 'dl', due)
end
if queue_timeout ~= '' then
  local start_by = NOW + tonumber(queue_timeout)
  redis.call('HSET', key('j', id), 'qdl', start_by)
  due = math.min(due, start_by)
end
if due < math.huge then redis.call('ZADD', key('D'), due, id) end
if idem ~= '' then
  redis.call('HSET', key('j', id), 'idem', idem)
  redis.call('SET', key('i', tenant, idem), id .. ' ' .. hash)
end
redis.call('ZADD', key('jobs'), 0, id)
count_queued(job, 1)
count(tenant, 'bytes', #body)
enter_class(id, job)
ring(model)
return {'ok', id, 1, NOW}
