--- @include keys
-- Caps of a tenant that are no buckets. nil, or the refusal.
local function beyond_caps(limits, new, model, size)
  local own = limits[1] or {}
  if own.suspended then return {'suspended'} end
  for scope = 3, 1, -1 do
    local most = limits[scope] and limits[scope].max_tokens
    if most and (new.max_tokens or math.huge) > most then return {'long', most, scope} end
  end
  local bytes = own.waiting_bytes
  local kept = bytes and tonumber(call('HGET', key('q', new.tenant), 'bytes') or 0)
  if bytes and kept + size > bytes then return {'full', 'waiting_bytes', 0, kept} end
  local stored = new.attachment and own.stored_bytes
  local has = stored and tonumber(call('HGET', key('q', new.tenant), 'stored') or 0)
  if stored and has + #new.attachment > stored then return {'full', 'stored_bytes', 0, 0} end
  local most = limits[2] and limits[2].waiting
  if most then
    local waiting = 0
    for _, class in ipairs({'high', 'normal', 'batch'}) do
      waiting = waiting + call('ZCARD', key('b', class, new.tenant, model))
    end
    if waiting >= most then return {'full', 'waiting', waiting, 0} end
  end
  most = limits[3] and limits[3].waiting
  if most then
    local waiting = tonumber(call('HGET', key('q', new.tenant), 'waiting k ' .. new.key) or 0)
    if waiting >= most then return {'full', 'waiting', waiting, 0} end
  end
end
