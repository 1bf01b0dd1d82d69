--- @include keys
-- What has no business under a job's key is kept, as a trace of how it came there.
local ASIDE_S = 86400

local function set_aside(name)
  local kept = key('aside', string.sub(name, #P + 2))
  call('RENAME', name, kept)
  call('EXPIRE', kept, ASIDE_S)
end
