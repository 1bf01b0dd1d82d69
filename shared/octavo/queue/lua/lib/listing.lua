--- @include keys
-- The list of all jobs. Those of batches are in a part of their own.
local function list_job(id, tenant, of_batch)
  local name = of_batch and '~' .. id or id
  call('ZADD', key('jobs'), 0, name, 0, ':' .. tenant .. ':' .. name)
end

local function unlist_job(id, tenant)
  call('ZREM', key('jobs'), id, ':' .. tenant .. ':' .. id, '~' .. id, ':' .. tenant .. ':~' .. id)
end
