--- @include keys
-- A job's subscribers: names with spaces between them, the latest last. Those beyond the latest few find new entries by
-- asking, as a reader does that may only read, and are the latest again when they have.
local MOST_SUBSCRIBERS = 256

-- Their names, and how many there are in all.
local function names_of(subscribers)
  local names, count = {}, 0
  for subscriber in string.gmatch(subscribers, '%S+') do
    count = count + 1
    names[count] = subscriber
  end
  return count <= MOST_SUBSCRIBERS and names or {unpack(names, count - MOST_SUBSCRIBERS + 1)}, count
end

local function without(names, gone)
  local kept = {}
  for _, subscriber in ipairs(names) do
    if not gone[subscriber] then kept[#kept + 1] = subscriber end
  end
  return kept
end

local function set_subscribers(id, names)
  if names[1] then call('HSET', key('j', id), 'gw', table.concat(names, ' '))
  else call('HDEL', key('j', id), 'gw') end
end
