--- @include limits
-- Whether a tenant runs as many jobs as it may, or as many of a model. One that lost its worker and waits for the next counts
-- as running, since it always may go on. Jobs of a model are counted only where that has a cap: `rm` of a job says that it
-- is, from its first claim to its end.
local caps = {}  -- by tenant and model, as no limit changes while a script runs

local function count_of_model(model) return 'running m ' .. model end

-- Caps of all its jobs and of those of the model; {} without any.
local function caps_of(tenant, model)
  local place = tenant .. ' ' .. model
  local found = caps[place]
  if not found then
    local texts = call('HMGET', key('lim', tenant), '*', 'm ' .. model)
    found = {limit_in(texts[1], 'running') or nil, limit_in(texts[2], 'running') or nil}
    caps[place] = found
  end
  return found
end

local function is_at_cap(tenant, model)
  local found = caps_of(tenant, model)
  local most, most_of_model = found[1], found[2]
  if not most and not most_of_model then return false end
  local counts = call('HMGET', key('q', tenant), 'running', 'back', count_of_model(model))
  if most and tonumber(counts[1] or 0) + tonumber(counts[2] or 0) >= most then return true end
  return most_of_model ~= nil and tonumber(counts[3] or 0) >= most_of_model
end
