--- @include clock
--- @include limits
-- Buckets in the server's milliseconds: P:bk:<tenant> has three doubles under '<scope> <limit>': its level, the time of that,
-- and the time until which refused jobs were told to wait. One that is not there, or that cannot be read, is full.
local BUCKETS = {'requests_per_minute', 'tokens_per_minute', 'tokens_per_day', 'batch_tokens_per_day'}
local CAPACITIES = {'requests_per_minute_capacity', 'tokens_per_minute_capacity', 'tokens_per_day_capacity',
  'batch_tokens_per_day_capacity'}
local PERIODS_MS = {60000, 60000, 86400000, 86400000}
local STORED = '<ddd'

-- The bucket of a limit, nil where there is none.
local function bucket_of(scopes, limits, scope, kind)
  local own = limits[scope]
  local limit = own and own[BUCKETS[kind]]
  if not limit then return nil end
  local capacity = own[CAPACITIES[kind]] or limit
  -- All of its fields at once: a table that grows is made anew.
  return {field = scopes[scope] .. ' ' .. BUCKETS[kind], scope = scope, kind = kind, capacity = capacity,
    rate = limit / PERIODS_MS[kind], level = capacity, promised = 0, takes = 0, needs = 0}
end

-- The numbers of what is stored, nil where they cannot be read.
local function stored_in(value)
  if not value or #value ~= 24 then return nil end
  local level, at, promised = struct.unpack(STORED, value)
  if level > -1e15 and level < 1e15 and at >= 0 and at < 1e15 and promised >= 0 and promised < 1e15 then
    return level, at, promised
  end
end

-- Levels now. A time that lies in the future is one of another clock: the bucket refills from now.
local function refill_all(tenant, buckets)
  local fields = {}
  for i = 1, #buckets do fields[i] = buckets[i].field end
  local stored = call('HMGET', key('bk', tenant), unpack(fields))
  for i = 1, #buckets do
    local bucket, level, at, promised = buckets[i], stored_in(stored[i])
    if level then
      bucket.level = math.min(bucket.capacity, level + math.max(0, NOW - at) * bucket.rate)
      bucket.promised = promised
    end
  end
end

local function store(tenant, buckets)
  local values = {}
  for i = 1, #buckets do
    values[2 * i - 1] = buckets[i].field
    values[2 * i] = struct.pack(STORED, buckets[i].level, NOW, buckets[i].promised)
  end
  if values[1] then call('HSET', key('bk', tenant), unpack(values)) end
end
