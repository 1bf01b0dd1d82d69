--- @include clock
--- @include sums
-- The account of what tenants use. P:use:<hour>:<tenant> has sums under '<minute> <of a batch> <key> <model>'.
local FOLD_AFTER_MS = 7200000  -- minutes are kept
local KEPT_S = 34560000        -- what is never folded, as nothing does it

-- Tokens that an owner tells at a job's end: the frame `use` of octavo.queue.wire.
local function usage_in(frame)
  local is_known, told = pcall(cmsgpack.unpack, frame)
  local counts = {}
  for i = 1, 7 do
    local count = is_known and type(told) == 'table' and tonumber(told[i + 2]) or 0
    counts[i] = count >= 0 and count < 1e12 and math.floor(count) or 0
  end
  return counts
end

-- A job ends now. Without `counts`, which its owner tells, what is stored of it counts.
local function note_usage(job, status, counts)
  local hour = math.floor(NOW / 3600000)
  local hash = key('use', hour, job.tn)
  local name = string.format('%d %d %s %s', math.floor(NOW / 60000) % 60, job.bt and 1 or 0, job.key or '-', job.mdl)
  local stored = call('HGET', hash, name)
  local sums, started = sums_in(stored), tonumber(job.sts or '')
  sums[1] = sums[1] + (counts and counts[1] or 0)
  sums[2] = sums[2] + (counts and counts[3] or 0)
  sums[3] = sums[3] + (counts and counts[2] or tonumber(job.n))
  sums[4] = sums[4] + (counts and counts[6] or 0)
  sums[5] = sums[5] + 1
  sums[6] = sums[6] + ((status == 'failed' or status == 'expired') and 1 or 0)
  sums[7] = sums[7] + math.max(0, (started or NOW) - tonumber(job.ct))
  sums[8] = sums[8] + (started and math.max(0, NOW - started) or 0)
  call('HSET', hash, name, sums_as_text(sums))
  if not stored then
    call('EXPIRE', hash, KEPT_S)
    call('ZADD', key('fold'), (hour + 1) * 3600000 + FOLD_AFTER_MS, 'm ' .. hour .. ' ' .. job.tn)
    call('ZADD', key('usage'), hour, job.tn)
  end
end
