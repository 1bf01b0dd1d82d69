--- @include keys
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

-- Whether a subscriber hears it. A user that may not publish stores tokens all the same: its readers ask for them.
local function is_heard(subscriber, message)
  return redis.pcall('PUBLISH', key('n', subscriber), message) ~= 0
end

local function publish()
  local subscribers, entries = next(told)
  if not subscribers then return end
  local is_one = not next(told, subscribers) and not string.find(subscribers, ' ', 1, true)
  if is_one and is_heard(subscribers, cmsgpack.pack(entries)) then return end
  --- @include audience
  tell_all()
end
