--- @include keys
--- @include counters
-- Bytes that a tenant has stored, of ended jobs, too: attachments, and the results of jobs that have one, which stored
-- responses are. P:kept:<tenant> has them by job, so that each counts once.

local function note_stored(id, tenant, size)
  if call('HSETNX', key('kept', tenant), id, size) == 1 then bump(key('q', tenant), 'stored', size) end
end

-- Of a job that ends with an attachment.
local function note_result(id, tenant, size)
  call('HINCRBY', key('kept', tenant), id, size)
  bump(key('q', tenant), 'stored', size)
end

local function forget_stored(id, tenant)
  local size = call('HGET', key('kept', tenant), id)
  if not size then return end
  call('HDEL', key('kept', tenant), id)
  bump(key('q', tenant), 'stored', -(tonumber(size) or 0))
end
