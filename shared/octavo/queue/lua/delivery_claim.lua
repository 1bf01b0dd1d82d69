#!lua flags=allow-oom
-- Take deliveries that are due: tenants take turns, and the endpoints of each. What an owner that died has taken is due once
-- more when its lease is over. Repeating it with the same token gives the same ones.
-- KEYS    P
-- ARGV    token lease_ms most
-- Reply   {the server's time in ms, {endpoint, event, token, tenant, type, what it tells of, ms of the event, tries, url,
--         version of the secret, ms until which the one before signs or 0, context of its trace or ''}...}
--- @include ended_deliveries
local token, lease_ms, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local AT_A_TIME, LONGEST_PAUSE_MS = 256, 26 * 3600000
local out = {NOW}

local function hand_out(endpoint, event, own)
  local tenant, kind, of, at, tries, trace = unpack(call('HMGET', key('hd', endpoint, event), 'tn', 'typ', 'of', 'at', 'n', 'tp'))
  local url, version, old = unpack(call('HMGET', key('he', endpoint), 'url', 'ver', 'old'))
  out[#out + 1] = {endpoint, event, own, tenant or '', kind or '', of or '', at or 0, tries or 0, url or '', version or 0,
    old or 0, trace or ''}
end

local before = call('GET', key('c', token))
if before then
  for own, endpoint, event in string.gmatch(before, '(%S+) (%S+) (%S+)') do
    if call('HGET', key('hd', endpoint, event), 'tok') == own then hand_out(endpoint, event, own) end
  end
  return out
end

-- The delivery of an endpoint that is due first. It has its turn only while it has room for one.
local function due(endpoint)
  local lapsed = call('ZRANGEBYSCORE', key('hl', endpoint), '-inf', NOW, 'LIMIT', 0, 1)[1]
  return lapsed or call('ZRANGEBYSCORE', key('hq', endpoint), '-inf', NOW, 'LIMIT', 0, 1)[1]
end

local taken = {}
local function visit(endpoint)
  local owner, off = unpack(call('HMGET', key('he', endpoint), 'tn', 'off'))
  if not owner then return clear_waiting(endpoint, AT_A_TIME, forget_delivery) end
  if off then
    clear_waiting(endpoint, AT_A_TIME, give_up)
    return trim_failed(endpoint)
  end
  local event = due(endpoint)
  if not event then return end
  call('ZREM', key('hq', endpoint), event)
  if call('HGET', key('hd', endpoint, event), 'st') ~= 'waiting' then
    call('ZREM', key('hl', endpoint), event)
    return
  end
  local own = token .. '.' .. #taken
  call('HSET', key('hd', endpoint, event), 'tok', own)
  call('ZADD', key('hl', endpoint), NOW + lease_ms, event)
  hand_out(endpoint, event, own)
  taken[#taken + 1] = own .. ' ' .. endpoint .. ' ' .. event
end

for _ = 1, most * 4 do
  if #taken >= most then break end
  local tenant, from = unpack(call('ZRANGE', key('ht'), 0, 0, 'WITHSCORES'))
  if not tenant or tonumber(from) >= NOW + 1 then break end
  local endpoint, its_turn = unpack(call('ZRANGE', key('hr', tenant), 0, 0, 'WITHSCORES'))
  if endpoint and tonumber(its_turn) < NOW + 1 then
    local owner = call('HGET', key('he', endpoint), 'tn')
    if owner and owner ~= tenant then return redis.error_reply('DAMAGED an endpoint stands in another tenant\'s line') end
    visit(endpoint)
    take_turn(tenant, endpoint, true)
  else
    stand(key('ht'), tenant, tonumber(its_turn))
  end
end
if #taken > 0 then
  call('SET', key('c', token), table.concat(taken, ' '), 'PX', lease_ms)
else
  local first = call('ZRANGE', key('ht'), 0, 0, 'WITHSCORES')[2]
  local is_lost = not first and tonumber(call('HGET', key('hc'), 'waiting') or 0) > 0
  if is_lost or first and tonumber(first) > NOW + LONGEST_PAUSE_MS then
    return redis.error_reply('DAMAGED deliveries stand in no line')
  end
end
return out
