--- @include subscribers
-- What is told, by subscriber. The gone are forgotten, once for each job.

-- The entries of each subscriber. Those of one list, mostly the only one, are one table.
local function messages_of(lists)
  local messages, own = {}, {}
  for subscribers, names in pairs(lists) do
    local entries = told[subscribers]
    for _, subscriber in ipairs(names) do
      local message = messages[subscriber]
      if message and not own[subscriber] then
        message = {unpack(message)}
        own[subscriber] = true
      end
      if message then
        for i = 1, #entries do message[#message + 1] = entries[i] end
      end
      messages[subscriber] = message or entries
    end
  end
  return messages
end

local function keep(subscribers, names)
  local done = {}
  for _, entry in ipairs(told[subscribers]) do
    local id = entry[1]
    if not done[id] and call('HEXISTS', key('j', id), 'gw') == 1 then set_subscribers(id, names) end
    done[id] = true
  end
end

local function tell_all()
  local lists, counts, packed, gone = {}, {}, {}, {}
  for subscribers in pairs(told) do lists[subscribers], counts[subscribers] = names_of(subscribers) end
  for subscriber, message in pairs(messages_of(lists)) do
    packed[message] = packed[message] or cmsgpack.pack(message)
    if not is_heard(subscriber, packed[message]) then gone[subscriber] = true end
  end
  for subscribers, names in pairs(lists) do
    local kept = next(gone) and without(names, gone) or names
    if #kept < counts[subscribers] then keep(subscribers, kept) end
  end
end
