--- @include keys
--- @include clock
-- A batch, and whether its caller owns it.

-- Its state if `token` is that of its owner, else nil.
local function owned_state(id, token)
  local owner, state = unpack(call('HMGET', key('bt', id), 'tok', 'st'))
  if owner and owner == token then return state end
end

local function enter_state(id, state)
  call('HSET', key('bt', id), 'st', state, state .. '_at', NOW)
end

local function number_of(id, field) return tonumber(call('HGET', key('bt', id), field) or 0) end

local function has_lines_open(id) return call('EXISTS', key('bto', id), key('bte', id)) > 0 end
