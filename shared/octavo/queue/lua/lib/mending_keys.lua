--- @include aside
--- @include mending_batches
--- @include tenant_keys
-- What can be told again of API keys, service accounts and projects from their hashes.

local function mend_keys(ids)
  for _, id in ipairs(ids) do
    local tenant, digest, created, account, revoked = unpack(call('HMGET', key('k', id), 'tn', 'dg', 'ct', 'acct', 'rev'))
    if not (tenant and digest and whole_number(created)) then
      set_aside(key('k', id))
    elseif not revoked then
      list_key(id, tenant, account)
    end
  end
end

local function mend_accounts(ids)
  for _, id in ipairs(ids) do
    local tenant, name, created = unpack(call('HMGET', key('ka', id), 'tn', 'name', 'ct'))
    if tenant and name and whole_number(created) then
      call('ZADD', key('kas'), 0, ':' .. tenant .. ':' .. id)
    else
      set_aside(key('ka', id))
    end
  end
end

local function mend_projects(tenants)
  for _, tenant in ipairs(tenants) do
    local name, created, archived = unpack(call('HMGET', key('pj', tenant), 'name', 'ct', 'arch'))
    if name and whole_number(created) and (not archived or whole_number(archived)) then
      call('ZADD', key('pjs'), created, tenant)
    else
      set_aside(key('pj', tenant))
    end
  end
end
