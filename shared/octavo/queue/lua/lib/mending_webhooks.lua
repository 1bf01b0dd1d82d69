--- @include mending_batches
--- @include deliveries
-- What can be told again of webhooks from the hashes of endpoints and of deliveries.
local LATEST_MS = 26 * 3600000  -- from now on: no pause is longer

local function mend_endpoints(ids)
  for _, id in ipairs(ids) do
    local hash = key('he', id)
    local tenant, url, types, created, version = unpack(call('HMGET', hash, 'tn', 'url', 'typ', 'ct', 'ver'))
    local is_whole = tenant and url and types and whole_number(created) and whole_number(version)
    for _, moment in ipairs(call('HMGET', hash, 'ut', 'old', 'off', 'lost')) do
      is_whole = is_whole and (not moment or whole_number(moment))
    end
    if is_whole then
      call('ZADD', key('endpoints'), 0, id, 0, ':' .. tenant .. ':' .. id)
      if call('HEXISTS', hash, 'off') == 0 then call('HSET', key('hs', tenant), id, types) end
    else
      set_aside(hash)
    end
  end
end

local function mend_delivery(endpoint, event, lines)
  local hash = key('hd', endpoint, event)
  local tenant, state, tries, at, due, failed, token = unpack(call('HMGET', hash, 'tn', 'st', 'n', 'at', 'due', 'ft', 'tok'))
  if state == 'failed' and whole_number(failed) then
    call('ZADD', key('hx'), 'GT', failed, endpoint)
    return call('ZADD', key('hf', endpoint), failed, event)
  end
  if not (state == 'waiting' and tenant and whole_number(tries) and whole_number(at)) then return set_aside(hash) end
  if not whole_number(due) or tonumber(due) > NOW + LATEST_MS then due = NOW end
  call('ZADD', key(token and 'hl' or 'hq', endpoint), token and NOW + GRACE_MS or due, event)
  count_waiting(1)
  if tonumber(tries) > 0 then call('ZADD', key('hx'), 'GT', at, endpoint) end
  local owner = call('HGET', key('he', endpoint), 'tn')
  if owner and owner ~= tenant then call('HSET', hash, 'tn', owner) end
  lines[endpoint] = owner or tenant
end

local function mend_deliveries(names)
  local failed, lines = tonumber(call('HGET', key('hc'), 'failed') or nil) or 0, {}
  call('DEL', key('hc'))
  if failed > 0 and failed < 1e15 then call('HSET', key('hc'), 'failed', math.floor(failed)) end
  for _, name in ipairs(names) do
    local endpoint, event = string.match(name, '^([^:]+):(.+)$')
    if endpoint then mend_delivery(endpoint, event, lines) else set_aside(key('hd', name)) end
  end
  for endpoint, tenant in pairs(lines) do take_turn(tenant, endpoint) end
end
