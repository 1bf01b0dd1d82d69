--- @include clock
--- @include job
--- @include aside
--- @include batch_jobs
-- What can be told again of files and batches from their hashes, and of the lines of batches from their jobs.
local ENDED_BATCH = {completed = true, failed = true, expired = true, cancelled = true}
local OPEN_BATCH = {validating = true, in_progress = true, finalizing = true, cancelling = true}

local function whole_number(value) return value and string.find(value, '^%d%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?%d?$') end

local function mend_files(ids)
  for _, id in ipairs(ids) do
    local tenant, bytes, created, expires = unpack(call('HMGET', key('f', id), 'tn', 'bytes', 'ct', 'exp'))
    if tenant and whole_number(bytes) and whole_number(created) and (not expires or whole_number(expires)) then
      call('ZADD', key('files'), 0, id, 0, ':' .. tenant .. ':' .. id)
      call('HINCRBY', key('fq'), tenant, bytes)
      call('HDEL', key('f', id), 'uses')
      if expires then call('ZADD', key('fx'), expires, id) end
    else
      set_aside(key('f', id))
    end
  end
end

-- Of an owner that may still be at work, the lease goes on for a moment.
local GRACE_MS = 10000
local COUNTS = {'total', 'cur', 'done', 'failed', 'u_in', 'u_cached', 'u_out', 'u_reason', 'oexp'}

local function mend_batches(ids)
  for _, id in ipairs(ids) do
    local hash = key('bt', id)
    local state, tenant, input, token, created, due = unpack(call('HMGET', hash, 'st', 'tn', 'in', 'tok', 'ct', 'dl'))
    local is_whole = (ENDED_BATCH[state] or OPEN_BATCH[state]) and tenant and input and whole_number(created) and whole_number(due)
    for _, count in ipairs(call('HMGET', hash, unpack(COUNTS))) do is_whole = is_whole and (not count or whole_number(count)) end
    if not is_whole then
      set_aside(hash)
    else
      call('ZADD', key('batches'), 0, id, 0, ':' .. tenant .. ':' .. id)
      if not ENDED_BATCH[state] then
        if call('EXISTS', key('f', input)) == 1 then call('HINCRBY', key('f', input), 'uses', 1) end
        if not call('ZSCORE', key('bts'), id) and not call('ZSCORE', key('btL'), id) then
          call('ZADD', key(token and 'btL' or 'bts'), NOW + (token and GRACE_MS or 0), id)
        end
      end
    end
  end
end

-- Its batch may be gone: then it is kept as long as any other job.
local function put_into_batch(id, of_batch, has_ended)
  local batch, place, index = string.match(of_batch, '^(%S+) (%d+) (%d+)$')
  local state = batch and call('HGET', key('bt', batch), 'st')
  if not state or ENDED_BATCH[state] then
    if has_ended then let_go(id) else call('HDEL', key('j', id), 'bt') end
    return
  end
  local member = place .. ' ' .. index .. ' ' .. id
  call('ZADD', key(has_ended and 'bte' or 'bto', batch), place, member)
end
