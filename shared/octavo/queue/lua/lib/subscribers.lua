--- @include keys
-- A job's subscribers: names with spaces between them.

local function without(subscribers, gone)
  local kept = {}
  for subscriber in string.gmatch(subscribers, '%S+') do
    if subscriber ~= gone then table.insert(kept, subscriber) end
  end
  return table.concat(kept, ' ')
end

local function set_subscribers(id, subscribers)
  if subscribers == '' then call('HDEL', key('j', id), 'gw')
  else call('HSET', key('j', id), 'gw', subscribers) end
end
