--- @include clock
-- API keys and projects of tenants.
local function list_key(id, tenant, account)
  call('ZADD', key('ks'), 0, id, 0, ':' .. tenant .. ':' .. id)
  if account then call('ZADD', key('ks'), 0, '@' .. account .. ':' .. id) end
end

-- Of the tenant ('' for any), not revoked, not expired: its hash.
local function usable(id, tenant)
  local hash = key('k', id)
  local owner, expires, revoked = unpack(call('HMGET', hash, 'tn', 'exp', 'rev'))
  if not owner or (tenant ~= '' and owner ~= tenant) or revoked then return nil end
  if expires and tonumber(expires) <= NOW then return nil end
  return hash
end

local function is_archived(tenant) return call('HEXISTS', key('pj', tenant), 'arch') == 1 end

-- A tenant becomes a project with its first key.
local function note_project(tenant, name)
  if call('EXISTS', key('pj', tenant)) == 1 then return 0 end
  call('HSET', key('pj', tenant), 'name', name, 'ct', NOW)
  call('ZADD', key('pjs'), NOW, tenant)
  return 1
end
