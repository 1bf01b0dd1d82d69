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

-- The buckets without room, and the ms after which all will have some; -1: never. Jobs that are refused are told times one
-- behind the other, each with what the bucket gets until then, as they would all come at once otherwise and all but one
-- in vain. Times that are passed hold nothing up, nor do those of a client that does not wait: beyond the time in which the
-- bucket fills up all are told the same.
local function lacking_in(buckets, is_line)
  local short, wait = {}, 0
  for i = 1, #buckets do
    local bucket = buckets[i]
    local is_short = bucket.level + ALMOST < bucket.needs
    if bucket.takes > bucket.capacity or (is_short and bucket.rate == 0) then return {bucket}, -1 end
    if is_short then
      short[#short + 1] = bucket
      local ready = NOW + math.ceil((bucket.needs - bucket.level) / bucket.rate)
      if not is_line then  -- these wait for others anyway
        local last = math.min(bucket.promised, NOW + bucket.capacity / bucket.rate)
        ready = math.max(ready, math.ceil(last + bucket.takes / bucket.rate))
        bucket.promised = ready
      end
      wait = math.max(wait, ready - NOW)
    end
  end
  return short, wait
end

-- What a bucket holds at most, what is left, and ms until it is full; -1 each for none.
local function rate_of(bucket)
  if not bucket then return -1, -1, -1 end
  local lacks = bucket.capacity - bucket.level
  return bucket.capacity, math.max(0, math.floor(bucket.level + ALMOST)), bucket.rate > 0 and math.ceil(lacks / bucket.rate) or 0
end

-- Of requests and of tokens the bucket with least in it.
local function rates_of(buckets)
  local requests, tokens
  for i = 1, #buckets do
    local bucket = buckets[i]
    if bucket.kind == 1 then
      if not requests or bucket.level < requests.level then requests = bucket end
    elseif not tokens or bucket.level < tokens.level then
      tokens = bucket
    end
  end
  local most, left, reset = rate_of(requests)
  return {most, left, reset, rate_of(tokens)}
end

-- Draws on buckets that have room, or all the same. The marks of those to give back to: '<scope><kind>' of each, digits.
local function draw(tenant, buckets)
  local marks = ''
  for i = 1, #buckets do
    local bucket = buckets[i]
    bucket.level = bucket.level - bucket.takes
    if bucket.kind > 1 then marks = marks .. string.char(48 + bucket.scope, 48 + bucket.kind) end
  end
  store(tenant, buckets)
  return marks ~= '' and marks
end
