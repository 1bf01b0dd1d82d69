--- @include clock
--- @include entering
--- @include bell
--- @include running
-- A tenant at its cap of running jobs, or of those of a model, leaves the lists of tenants, as one without a backlog does,
-- so that no claim looks at it. It is parked in each class and model whose turn it was: P:pk:<tenant> has '<class> <model>', P:parked:<model>
-- '<class> <tenant>' by the ms at which it was looked at last.

local function park(class, tenant, model)
  local tenants = key('v', class, model)
  local virtual_time = call('ZSCORE', tenants, tenant)
  call('ZREM', tenants, tenant)
  if virtual_time then call('SET', key('lf', class, tenant, model), virtual_time, 'EX', 3600) end
  call('SADD', key('pk', tenant), class .. ' ' .. model)
  call('ZADD', key('parked', model), NOW, class .. ' ' .. tenant)
end

-- It comes back as one whose backlog is new: without arrears.
local function unpark_one(class, tenant, model)
  call('SREM', key('pk', tenant), class .. ' ' .. model)
  call('ZREM', key('parked', model), class .. ' ' .. tenant)
  if call('EXISTS', key('b', class, tenant, model)) == 1 then
    enter_fair(class, tenant, model)
    ring(model)
  end
end

-- Where it is not at a cap any more: a place is a class of a model.
local function unpark(tenant)
  for _, place in ipairs(call('SMEMBERS', key('pk', tenant))) do
    local class, model = string.match(place, '^(%l+) (.+)$')
    if not class then
      call('SREM', key('pk', tenant), place)
    elseif not is_at_cap(tenant, model) then
      unpark_one(class, tenant, model)
    end
  end
end
