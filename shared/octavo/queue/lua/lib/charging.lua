--- @include buckets
-- What a job draws on at its acceptance, all of it or nothing.
local ALMOST = 1e-6  -- of a token: a wait is computed, and a level is a sum

-- Buckets of the narrowest scope first. Those of a day for batches are drawn on by lines of batches alone.
local function drawn_on(scopes, limits, tokens, is_line)
  local buckets = {}
  for scope = #scopes, 1, -1 do
    for kind = 1, limits[scope] and (is_line and 4 or 3) or 0 do
      local bucket = bucket_of(scopes, limits, scope, kind)
      if bucket then
        bucket.takes = kind == 1 and 1 or tokens
        -- Half of each is left to requests whose answers are awaited.
        local reserve = is_line and kind < 4 and bucket.capacity / 2 or 0
        bucket.needs = math.max(bucket.takes, math.min(bucket.capacity, bucket.takes + reserve))
        buckets[#buckets + 1] = bucket
      end
    end
  end
  return buckets
end

-- The narrowest bucket without room, and the ms after which all have room; -1: never.
local function lacking_in(buckets)
  local lacking, wait = nil, 0
  for _, bucket in ipairs(buckets) do
    if bucket.takes > bucket.capacity or (bucket.rate == 0 and bucket.level + ALMOST < bucket.needs) then return bucket, -1 end
    if bucket.level + ALMOST < bucket.needs then
      lacking = lacking or bucket
      wait = math.max(wait, math.ceil((bucket.needs - bucket.level) / bucket.rate))
    end
  end
  return lacking, wait
end

-- Of requests and of tokens the bucket with least in it: {what it holds at most, what is left, ms until it is full}, -1 for
-- none.
local function rates_of(buckets)
  local least = {}
  for _, bucket in ipairs(buckets) do
    local i = bucket.kind == 1 and 1 or 2
    if not least[i] or bucket.level < least[i].level then least[i] = bucket end
  end
  local rates = {}
  for i = 1, 2 do
    local bucket = least[i]
    rates[#rates + 1] = bucket and bucket.capacity or -1
    rates[#rates + 1] = bucket and math.max(0, math.floor(bucket.level + ALMOST)) or -1
    rates[#rates + 1] = bucket and (bucket.rate > 0 and math.ceil((bucket.capacity - bucket.level) / bucket.rate) or 0) or -1
  end
  return rates
end

-- Draws on buckets that have room, or all the same. The marks of those to give back to.
local function draw(tenant, buckets)
  local marks = {}
  for _, bucket in ipairs(buckets) do
    bucket.level = bucket.level - bucket.takes
    if bucket.kind > 1 then marks[#marks + 1] = bucket.mark end
  end
  store(tenant, buckets)
  return marks[1] and table.concat(marks)
end

-- A refusal changes nothing, but for times that lie in the future: the bucket would be frozen.
local function thaw(tenant, buckets)
  local ahead = {}
  for _, bucket in ipairs(buckets) do
    if bucket.is_ahead then ahead[#ahead + 1] = bucket end
  end
  store(tenant, ahead)
end
