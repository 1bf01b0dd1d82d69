--- @include buckets
-- Tokens of a job whose owner does not tell them.
local function used_by(job)
  return tonumber(job.ep) > 0 and tonumber(job.est) + tonumber(job.n) or 0
end

-- A job's end gives back what it was charged and has not used, to the buckets that it drew on. It may have used more.
local function settle(job, used)
  local unused = tonumber(job.cost) - used
  local scopes = scopes_of(job.mdl, job.key)
  local limits, buckets = limits_of(job.tn, scopes), {}
  for scope, kind in string.gmatch(job.chg, '([1-3])([2-4])') do
    local bucket = bucket_of(scopes, limits, tonumber(scope), tonumber(kind))
    if bucket then buckets[#buckets + 1] = bucket end
  end
  if not buckets[1] then return end
  refill_all(job.tn, buckets)
  for _, bucket in ipairs(buckets) do bucket.level = math.min(bucket.capacity, bucket.level + unused) end
  store(job.tn, buckets)
end
