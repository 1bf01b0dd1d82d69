--- @include keys
local function ring(model)
  local bell = key('bell', model)
  if call('LLEN', bell) == 0 then call('RPUSH', bell, '1') end
end
