--- @include limits
-- Whether a tenant runs as many jobs as it may, or as many of a model or a key. One that lost its worker and waits for the
-- next counts as running, since it always may go on. Jobs of a model and of a key are counted only where these have a cap:
-- `rm` and `rk` of a job say that it is, from its first claim to its end.
local caps, caps_of_keys = {}, {}  -- no limit changes while a script runs

local function count_of_model(model) return 'running m ' .. model end
local function count_of_key(api_key) return 'running k ' .. api_key end

-- Caps of all its jobs and of those of the model, and whether any of its keys has one; nil for none.
local function caps_of(tenant, model)
  local place = tenant .. ' ' .. model
  local found = caps[place]
  if not found then
    local texts = call('HMGET', key('lim', tenant), '*', 'm ' .. model, KEYS_HAVE_CAPS)
    found = {limit_in(texts[1], 'running') or nil, limit_in(texts[2], 'running') or nil, texts[3] or nil}
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

-- nil for none.
local function cap_of_key(tenant, model, api_key)
  if not api_key or not caps_of(tenant, model)[3] then return nil end
  local place = tenant .. ' ' .. api_key
  if caps_of_keys[place] == nil then
    caps_of_keys[place] = limit_in(call('HGET', key('lim', tenant), 'k ' .. api_key), 'running') or false
  end
  return caps_of_keys[place] or nil
end

local function is_key_at_cap(tenant, model, api_key)
  local most = cap_of_key(tenant, model, api_key)
  return most ~= nil and tonumber(call('HGET', key('q', tenant), count_of_key(api_key)) or 0) >= most
end
