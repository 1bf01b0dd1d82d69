--- @include clock
--- @include limits
-- Buckets in the server's milliseconds: P:bk:<tenant> has level and ms, two doubles, under '<scope> <limit>'. One that is
-- not there, or that cannot be read, is full.
local BUCKETS = {'requests_per_minute', 'tokens_per_minute', 'tokens_per_day', 'batch_tokens_per_day'}
local CAPACITIES = {'requests_per_minute_capacity', 'tokens_per_minute_capacity', 'tokens_per_day_capacity',
  'batch_tokens_per_day_capacity'}
local PERIODS_MS = {60000, 60000, 86400000, 86400000}
local STORED = '<dd'

-- The bucket of a limit, nil where there is none.
local function bucket_of(scopes, limits, scope, kind)
  local own = limits[scope]
  local limit = own and own[BUCKETS[kind]]
  if not limit then return nil end
  local capacity = own[CAPACITIES[kind]] or limit
  -- All of its fields at once: a table that grows is made anew.
  return {field = scopes[scope] .. ' ' .. BUCKETS[kind], scope = scope, kind = kind, capacity = capacity,
    rate = limit / PERIODS_MS[kind], level = capacity, takes = 0, needs = 0}
end

-- Level and time of what is stored, nil where it cannot be read.
local function stored_in(value)
  if not value or #value ~= 16 then return nil end
  local level, at = struct.unpack(STORED, value)
  if level > -1e15 and level < 1e15 and at >= 0 and at < 1e15 then return level, at end
end

-- Levels now. The buckets whose time lies in the future, which is one of another clock: they refill from now.
local function refill_all(tenant, buckets)
  local fields, ahead = {}, {}
  for i = 1, #buckets do fields[i] = buckets[i].field end
  local stored = call('HMGET', key('bk', tenant), unpack(fields))
  for i = 1, #buckets do
    local bucket, level, at = buckets[i], stored_in(stored[i])
    if level then
      bucket.level = math.min(bucket.capacity, level + math.max(0, NOW - at) * bucket.rate)
      if at > NOW then ahead[#ahead + 1] = bucket end
    end
  end
  return ahead
end

local function store(tenant, buckets)
  local values = {}
  for i = 1, #buckets do
    values[2 * i - 1] = buckets[i].field
    values[2 * i] = struct.pack(STORED, buckets[i].level, NOW)
  end
  if values[1] then call('HSET', key('bk', tenant), unpack(values)) end
end
