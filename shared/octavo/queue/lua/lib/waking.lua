--- @include running
--- @include parking
--- @include holding
-- What a claim does that finds nothing, while jobs wait: a tenant that is parked for no reason comes back.
local LOOKED_AT = 8

-- Nothing comes back anywhere, so no job is counted as coming back.
local function forget_back(tenant)
  if not call('HGET', key('q', tenant), 'back') then return end
  for _, name in ipairs(call('HKEYS', key('models'))) do
    if call('EXISTS', key('b', 'resume', name), key('b', 'solo', name), key('bound', name)) > 0 then return end
  end
  call('HDEL', key('q', tenant), 'back')
end

-- More jobs than all that run or wait are none.
local function is_counted_wrong(tenant, model)
  local running, back, of_model = unpack(call('HMGET', key('q', tenant), 'running', 'back', count_of_model(model)))
  local all = tonumber(running or 0) + tonumber(back or 0)
  return tonumber(running or 0) > call('ZCARD', key('L')) or tonumber(back or 0) > call('ZCARD', key('jobs'))
    or tonumber(of_model or 0) > all
end

-- Of a key whose jobs are held. False if they are counted wrong.
local function look_after_held(tenant, api_key, model)
  if call('EXISTS', key('held', tenant, api_key)) == 0 then
    call('ZREM', key('parked', model), 'held ' .. tenant .. ' ' .. api_key)
    return true
  end
  local running, back, of_key = unpack(call('HMGET', key('q', tenant), 'running', 'back', count_of_key(api_key)))
  if tonumber(of_key or 0) > tonumber(running or 0) + tonumber(back or 0) then return false end
  if not is_key_at_cap(tenant, model, api_key) then let_one_go(tenant, api_key) end
  call('ZADD', key('parked', model), NOW, 'held ' .. tenant .. ' ' .. api_key)
  return true
end

-- Whether any tenant is parked, of those that were looked at longest ago, and its jobs are counted right.
local function look_after_parked(model)
  local places = call('ZRANGE', key('parked', model), 0, LOOKED_AT - 1)
  for _, place in ipairs(places) do
    local class, tenant = string.match(place, '^(%l+) (.+)$')
    local of, api_key = string.match(place, '^held (%S+) (%S+)$')
    if of then
      if not look_after_held(of, api_key, model) then return false end
    elseif tenant then
      forget_back(tenant)
      if is_counted_wrong(tenant, model) then return false end
      if is_at_cap(tenant, model) then park(class, tenant, model) else unpark_one(class, tenant, model) end
    else
      call('ZREM', key('parked', model), place)
    end
  end
  return places[1] ~= nil
end
