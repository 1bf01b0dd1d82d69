--- @include limits
-- Whether a tenant runs as many jobs as it may. One that lost its worker and waits for the next counts as running, since it
-- always may go on.
local caps = {}  -- by tenant, false for none: no limit changes while a script runs

local function is_at_cap(tenant)
  local most = caps[tenant]
  if most == nil then
    most = limit_in(call('HGET', key('lim', tenant), '*'), 'running') or false
    caps[tenant] = most
  end
  if not most then return false end
  local counts = call('HMGET', key('q', tenant), 'running', 'back')
  return tonumber(counts[1] or 0) + tonumber(counts[2] or 0) >= most
end
