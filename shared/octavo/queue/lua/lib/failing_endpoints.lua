--- @include keys
--- @include clock
-- Endpoints to which tries fail, for operators: in the order of their latest failures.
local REMEMBERED_MS = 30 * 86400000

local function note_failing(endpoint)
  call('ZADD', key('hx'), NOW, endpoint)
  call('ZREMRANGEBYSCORE', key('hx'), '-inf', NOW - REMEMBERED_MS)
end

-- A delivery was made, or is to begin anew. An endpoint fails no more once none has failed or waits for a later try.
local function note_going(endpoint)
  if call('ZCARD', key('hf', endpoint)) > 0 then return end
  if #call('ZRANGE', key('hq', endpoint), '(' .. NOW, '+inf', 'BYSCORE', 'LIMIT', 0, 1) == 0 then
    call('ZREM', key('hx'), endpoint)
  end
end
