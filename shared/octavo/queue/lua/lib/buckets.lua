--- @include clock
--- @include limits
-- Buckets in the server's milliseconds: P:bk:<tenant> has '<level> <ms>' under '<scope> <limit>'. One that is not there, or
-- that cannot be read, is full.
local BUCKETS = {
  {'requests_per_minute', 60000}, {'tokens_per_minute', 60000}, {'tokens_per_day', 86400000},
  {'batch_tokens_per_day', 86400000},
}

-- The bucket of a limit, nil where there is none. `mark` is how a job notes that it has drawn on it.
local function bucket_of(scopes, limits, scope, kind)
  local name, period_ms = BUCKETS[kind][1], BUCKETS[kind][2]
  local limit = limits[scope] and limits[scope][name]
  if not limit then return nil end
  local capacity = limits[scope][name .. '_capacity'] or limit
  -- All of its fields at once: a table that grows is made anew.
  return {field = scopes[scope] .. ' ' .. name, mark = scope .. kind, scope = scope, kind = kind, name = name,
    capacity = capacity, rate = limit / period_ms, level = capacity, takes = 0, needs = 0, is_ahead = false}
end

-- What is in it now. A time that lies in the future is one of another clock: it refills from now.
local function refill(bucket, stored)
  local level, at = string.match(stored or '', '^(%S+) (%d+)$')
  level, at = tonumber(level), tonumber(at)
  if not level or not at or level ~= level or math.abs(level) >= 1e15 then
    bucket.level = bucket.capacity
    return
  end
  bucket.is_ahead = at > NOW
  bucket.level = math.min(bucket.capacity, level + math.max(0, NOW - at) * bucket.rate)
end

local function refill_all(tenant, buckets)
  local fields = {}
  for i, bucket in ipairs(buckets) do fields[i] = bucket.field end
  local stored = call('HMGET', key('bk', tenant), unpack(fields))
  for i, bucket in ipairs(buckets) do refill(bucket, stored[i]) end
end

local function store(tenant, buckets)
  local values = {}
  for _, bucket in ipairs(buckets) do
    values[#values + 1] = bucket.field
    values[#values + 1] = string.format('%.17g %d', bucket.level, NOW)
  end
  if values[1] then call('HSET', key('bk', tenant), unpack(values)) end
end
