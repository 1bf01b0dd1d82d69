--- @include deliveries
--- @include failing_endpoints
-- Deliveries that are given up. An endpoint's latest are known for a while, and may be sent again; how many made room for
-- them is counted.
local KNOWN_S, MOST_KNOWN = 30 * 86400, 1000

local function trim_failed(endpoint)
  local failed = key('hf', endpoint)
  call('ZREMRANGEBYSCORE', failed, '-inf', NOW - KNOWN_S * 1000)
  local earliest = call('ZRANGE', failed, 0, -MOST_KNOWN - 1)
  for _, event in ipairs(earliest) do
    call('DEL', key('hd', endpoint, event))
    call('ZREM', failed, event)
  end
  if #earliest > 0 and call('EXISTS', key('he', endpoint)) == 1 then
    call('HINCRBY', key('he', endpoint), 'lost', #earliest)
  end
end

local function give_up(endpoint, event)
  local delivery = key('hd', endpoint, event)
  call('ZREM', key('hq', endpoint), event)
  call('ZREM', key('hl', endpoint), event)
  call('HDEL', delivery, 'tok', 'due')
  call('HSET', delivery, 'st', 'failed', 'ft', NOW)
  call('EXPIRE', delivery, KNOWN_S)
  call('ZADD', key('hf', endpoint), NOW, event)
  call('EXPIRE', key('hf', endpoint), KNOWN_S)
  count_waiting(-1)
  call('HINCRBY', key('hc'), 'failed', 1)
  note_failing(endpoint)
end

-- What waits for an endpoint that is gone or switched off, some at a time: `act` takes each away.
local function clear_waiting(endpoint, most, act)
  for _, kind in ipairs({'hq', 'hl'}) do
    for _, event in ipairs(call('ZRANGE', key(kind, endpoint), 0, most - 1)) do act(endpoint, event) end
  end
end
