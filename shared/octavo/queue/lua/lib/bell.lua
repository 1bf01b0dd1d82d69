--- @include keys
local function ring(model)
  local bell = key('bell', model)
  if call('LLEN', bell) == 0 then call('RPUSH', bell, '1') end
end

-- Wakes a worker that serves the very same. There may be none, ever.
local function ring_equals(model, digest)
  local bell = key('bell', model, '=' .. digest)
  if call('LLEN', bell) == 0 then call('RPUSH', bell, '1') end
  call('EXPIRE', bell, 60)
end
