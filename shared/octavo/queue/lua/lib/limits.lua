--- @include keys
-- Limits of a tenant. P:lim:<tenant> has a text ' <name>=<number>...' for each scope: '*' is the tenant, 'm <model>' its jobs
-- for a model, 'k <key>' those of a key. What cannot be read there limits nothing.
local KEYS_HAVE_CAPS = '#'  -- a field of the same hash: there while any key has a cap of running jobs
local WAITING = 20000  -- jobs of a tenant, unless it has another limit

local function scopes_of(model, api_key)
  return {'*', 'm ' .. model, 'k ' .. (api_key or '')}
end

local function limits_in(text)
  local found = {}
  for name, value in string.gmatch(text, ' ([%l_]+)=(%d+)') do found[name] = tonumber(value) end
  return found
end

-- Limits of each scope by name; none of a scope without any.
local function limits_of(tenant, scopes)
  local texts, limits = call('HMGET', key('lim', tenant), unpack(scopes)), {}
  for i = 1, #scopes do limits[i] = texts[i] and limits_in(texts[i]) or nil end
  return limits
end

-- One limit, where no other is needed.
local function limit_in(text, name)
  return text and tonumber(string.match(text, ' ' .. name .. '=(%d+)'))
end
