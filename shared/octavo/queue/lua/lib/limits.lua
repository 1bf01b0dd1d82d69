--- @include keys
-- Limits of a tenant. P:lim:<tenant> has a text ' <name>=<number>...' for each scope: '*' is the tenant, 'm <model>' its jobs
-- for a model, 'k <key>' those of a key. What cannot be read there limits nothing.
local WAITING = 20000  -- jobs of a tenant, unless it has another limit

local function scopes_of(model, api_key)
  return {'*', 'm ' .. model, 'k ' .. (api_key or '')}
end

local function limit_in(text, name)
  return text and tonumber(string.match(text, ' ' .. name .. '=(%d+)'))
end
