--- @include clock
--- @include job
-- The clock was set back: times that were written before lie in the future, and what waits for them would wait for as long
-- again as the clock has lost. Each kind shows which of its times are from before.
local LONGEST_LEASE_MS, LONGEST_WAIT_MS = 300000, 30000

-- `by` ms; `before` is the time that was reached. A lease of the time now ends within its own length.
local function set_back_leases(by, before)
  for _, id in ipairs(call('ZRANGEBYSCORE', key('L'), before, '+inf')) do
    local lease_ms = tonumber(read(id, 'ls') or '') or LONGEST_LEASE_MS
    if by > lease_ms then call('ZINCRBY', key('L'), -by, id) end
  end
end

-- A worker that was heard of in the future is known for as long as it would have been.
local function set_back_workers(by)
  for _, worker in ipairs(call('ZRANGEBYSCORE', key('workers'), '(' .. NOW, '+inf')) do
    local left = call('PTTL', key('W', worker)) - by
    call('ZINCRBY', key('workers'), -by, worker)
    call('EXPIRE', key('W', worker), math.max(1, math.ceil(left / 1000)))
  end
end

-- No suspect waits for longer than the longest time.
local function set_back_suspects(by, model)
  local suspects = {[key('b', 'solo', model)] = true}
  for _, id in ipairs(call('ZRANGE', key('bound', model), 0, -1)) do
    local lane = read(id, 'lane') or ''
    if string.find(lane, '^solo:=.') then suspects[key('b', lane, model)] = true end
  end
  for lane in pairs(suspects) do
    for _, id in ipairs(call('ZRANGEBYSCORE', lane, NOW + LONGEST_WAIT_MS + 1, '+inf')) do
      call('ZINCRBY', lane, -by, id)
    end
  end
end

-- Deliveries, and the lines in which they stand.
local function set_back_deliveries(by)
  --- @include deliveries
  for _, tenant in ipairs(call('ZRANGE', key('ht'), 0, -1)) do
    for _, endpoint in ipairs(call('ZRANGE', key('hr', tenant), 0, -1)) do
      for _, kind in ipairs({'hq', 'hl'}) do
        local set = key(kind, endpoint)
        for _, event in ipairs(call('ZRANGEBYSCORE', set, '(' .. NOW, '+inf')) do call('ZINCRBY', set, -by, event) end
      end
      take_turn(tenant, endpoint, true)
    end
  end
end

-- Pauses that would begin in the future begin now.
local function set_back_pauses()
  local lanes = call('HGETALL', key('pauses'))
  for i = 1, #lanes, 2 do
    local over, since = string.match(lanes[i + 1], '^(%d+) (%d+)$')
    if since and tonumber(since) > NOW then call('HSET', key('pauses'), lanes[i], over .. ' ' .. NOW) end
  end
end

local function set_back(by, before)
  set_back_leases(by, before)
  set_back_workers(by)
  set_back_deliveries(by)
  set_back_pauses()
  for _, model in ipairs(call('HKEYS', key('models'))) do
    set_back_suspects(by, model)
    call('DEL', key('blocked', model))
  end
end
