--- @include keys
-- `mark` names the bell for some workers only, which expires, as there may be none, ever: '=<class>' for those that have
-- room for the class, where others have none; '=<digest>' for those that serve the very same, '=<digest>:<class>' for
-- both.
local function ring(model, mark)
  local bell = mark and key('bell', model, mark) or key('bell', model)
  if call('LLEN', bell) == 0 then call('RPUSH', bell, '1') end
  if mark then call('EXPIRE', bell, 60) end
end
