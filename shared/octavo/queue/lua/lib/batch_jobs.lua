--- @include keys
--- @include clock
--- @include job
-- Jobs of batches. A member of P:bto and P:bte is "<place> <index> <job>", "<place> 0 -" for a line that asked for none;
-- the job's field `bt` is "<batch> <place> <index>" until its line is in a named part.

-- An ended job goes from the open ones of its batch to the ended ones, and keeps all that it has until its line is
-- harvested. False if its batch does not wait for it.
local function settle_in_batch(id, of_batch)
  local batch, place, index = string.match(of_batch, '^(%S+) (%d+) (%d+)$')
  if not batch then return false end
  local member = place .. ' ' .. index .. ' ' .. id
  if call('ZREM', key('bto', batch), member) == 1 then
    call('ZADD', key('bte', batch), place, member)
    return true
  end
  return call('ZSCORE', key('bte', batch), member) ~= false
end

local HARVESTED_S = 60

-- An ended job's line is in a part, or nothing waits for it any more.
local function let_go(id)
  local tenant, idem = read(id, 'tn', 'idem')
  if not tenant then return end
  call('HDEL', key('j', id), 'bt')
  if call('EXISTS', key('r', id)) == 1 then call('DEL', key('t', id)) end  -- a stream takes 4 KB, and the result has it all
  for _, kind in ipairs({'j', 't', 'r'}) do call('EXPIRE', key(kind, id), HARVESTED_S) end
  if idem then call('EXPIRE', key('i', tenant, idem), HARVESTED_S) end
  call('ZADD', key('x'), NOW + HARVESTED_S * 1000, id .. ' ' .. tenant)
end

-- Its batch goes on without it, or is gone. One that has not ended ends as any other job.
local function leave_batch(id)
  local state = read(id, 'st')
  if state == 'queued' or state == 'running' then call('HDEL', key('j', id), 'bt') else let_go(id) end
end
