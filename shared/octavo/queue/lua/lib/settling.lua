--- @include buckets
-- Tokens of a job whose owner does not tell them.
local function used_by(job)
  return tonumber(job.ep) > 0 and tonumber(job.est) + tonumber(job.n) or 0
end

-- A job that used more than it was charged.
local function take_more(job, unused)
  local scopes, buckets = scopes_of(job.mdl, job.key), {}
  local limits = limits_of(job.tn, scopes)
  for scope, kind in string.gmatch(job.chg, '([1-3])([2-4])') do
    local bucket = bucket_of(scopes, limits, tonumber(scope), tonumber(kind))
    if bucket then buckets[#buckets + 1] = bucket end
  end
  if not buckets[1] then return end
  refill_all(job.tn, buckets)
  for _, bucket in ipairs(buckets) do bucket.level = bucket.level + unused end
  store(job.tn, buckets)
end

-- A job's end gives back what it was charged and has not used, to the buckets that it drew on. A level and the time it is
-- of are enough for that, as what is more than a bucket holds is lost at its next refill anyway: no limit is read.
local function settle(job, used)
  local unused = tonumber(job.cost) - used
  if unused < 0 then return take_more(job, unused) end
  if unused == 0 then return end
  local scopes, fields = scopes_of(job.mdl, job.key), {}
  for i = 1, #job.chg - 1, 2 do
    local scope, kind = string.byte(job.chg, i, i + 1)
    scope, kind = scopes[scope - 48], BUCKETS[kind - 48]
    if scope and kind then fields[#fields + 1] = scope .. ' ' .. kind end
  end
  if not fields[1] then return end
  local hash, values = key('bk', job.tn), {}
  local stored = call('HMGET', hash, unpack(fields))
  for i = 1, #fields do
    local level, at, promised = stored_in(stored[i])
    if level then
      values[#values + 1] = fields[i]
      values[#values + 1] = struct.pack(STORED, level + unused, at, promised)
    end
  end
  if values[1] then call('HSET', hash, unpack(values)) end
end
