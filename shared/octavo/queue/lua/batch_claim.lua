#!lua flags=allow-oom
-- Take a batch that is due, or whose owner's lease ran out. Repeating it with the same token gives the same batch.
-- KEYS    P
-- ARGV    clerk token lease_ms
-- Reply   its id, '' if there is none to take
--- @include batch_jobs
local clerk, token, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local LOOKED_AT = 16
local ENDED = {completed = true, failed = true, expired = true, cancelled = true}
local OPEN = {validating = true, in_progress = true, finalizing = true, cancelling = true}

local before = call('GET', key('c', token))
if before and call('HGET', key('bt', before), 'tok') == token then
  call('ZADD', key('btL'), NOW + lease_ms, before)
  return before
end

-- A batch whose time to be known is over, or which something else has removed.
local function forget(id, tenant)
  for _, kind in ipairs({'bto', 'bte'}) do
    for _, member in ipairs(call('ZRANGE', key(kind, id), 0, -1)) do leave_batch(string.match(member, '%S*$')) end
    call('DEL', key(kind, id))
  end
  call('DEL', key('bt', id), key('btp', id))
  call('ZREM', key('batches'), id, ':' .. (tenant or '?') .. ':' .. id)
end

local function take(id)
  call('ZREM', key('bts'), id)
  call('ZREM', key('btL'), id)
  local state, tenant = unpack(call('HMGET', key('bt', id), 'st', 'tn'))
  if not state or not tenant or ENDED[state] then
    forget(id, tenant)
    return false
  end
  if not OPEN[state] then return nil end
  call('HSET', key('bt', id), 'tok', token, 'wid', clerk)
  call('ZADD', key('btL'), NOW + lease_ms, id)
  call('SET', key('c', token), id, 'PX', lease_ms)
  return true
end

for _, set in ipairs({'bts', 'btL'}) do
  for _, id in ipairs(call('ZRANGEBYSCORE', key(set), '-inf', NOW, 'LIMIT', 0, LOOKED_AT)) do
    local taken = take(id)
    if taken then return id end
    if taken == nil then return redis.error_reply('DAMAGED a batch has no state') end
  end
end
return ''
