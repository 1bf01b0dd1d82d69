--- @include keys
--- @include job
-- What is counted of the queue since the server was set up, by model. It only tells: no call fails for it.

local function add_to_tally(what, model)
  local field = what .. ':' .. (model or '?')
  if is_error(redis.pcall('HINCRBY', key('tally'), field, 1)) then redis.pcall('HSET', key('tally'), field, 1) end
end

-- A write of a worker that owns the job no more. One that has ended the job itself only says it again.
local function tally_refused(id, token)
  local model, ended_by = read(id, 'mdl', 'ftok')
  if model and ended_by ~= token then add_to_tally('refused', model) end
end
