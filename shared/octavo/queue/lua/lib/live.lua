--- @include subscribers
-- Live entries are collected, and each subscriber gets its own in one message when the script is done.
local told = {}  -- entries by the list of their job's subscribers

local function tell(id, subscribers, entry, payload)
  if not subscribers then return end
  local entries = told[subscribers]
  if not entries then
    entries = {}
    told[subscribers] = entries
  end
  entries[#entries + 1] = {id, entry, payload}
end

local function publish()
  local outgoing = {}
  for subscribers, entries in pairs(told) do
    for subscriber in string.gmatch(subscribers, '%S+') do
      local message = outgoing[subscriber] or {}
      for i = 1, #entries do message[#message + 1] = entries[i] end
      outgoing[subscriber] = message
    end
  end
  for subscriber, message in pairs(outgoing) do
    -- A user that may not publish stores tokens all the same: its readers ask for them.
    if redis.pcall('PUBLISH', key('n', subscriber), cmsgpack.pack(message)) == 0 then
      for _, entry in ipairs(message) do
        local subscribers = call('HGET', key('j', entry[1]), 'gw')
        if subscribers then set_subscribers(entry[1], without(subscribers, subscriber)) end
      end
    end
  end
end
