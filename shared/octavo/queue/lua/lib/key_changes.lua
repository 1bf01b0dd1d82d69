--- @include tenant_keys
-- Gateways keep API keys for a second, and hear of what changes.
local function tell_gateways(id) call('PUBLISH', key('n', 'keys'), id) end

local function revoke(id, tenant, known_s)
  local hash = key('k', id)
  local owner, account, revoked = unpack(call('HMGET', hash, 'tn', 'acct', 'rev'))
  if not owner or (tenant ~= '' and owner ~= tenant) or revoked then return 0 end
  call('HSET', hash, 'rev', NOW)
  call('EXPIRE', hash, known_s)
  call('ZREM', key('ks'), id, ':' .. owner .. ':' .. id, account and ('@' .. account .. ':' .. id) or id)
  tell_gateways(id)
  return 1
end
