--- @include clock
--- @include sums
-- The account of what tenants use. P:use:<hour>:<tenant> has sums under '<minute> <of a batch> <key> <model>'.
local FOLD_AFTER_MS = 7200000  -- minutes are kept
local KEPT_S = 34560000        -- what is never folded, as nothing does it

-- A count of an owner's; what is none counts as nothing.
local function told(count)
  count = tonumber(count) or 0
  return count >= 0 and count < 1e12 and math.floor(count) or 0
end

-- Tokens that an owner tells at a job's end, of the frame `use` of octavo.queue.wire: of the prompt, of the answer, of the
-- prompt from the cache, drafted.
local function usage_in(frame)
  local is_known, counts = pcall(cmsgpack.unpack, frame)
  if not is_known or type(counts) ~= 'table' then counts = {} end
  return {told(counts[3]), told(counts[4]), told(counts[5]), told(counts[8])}
end

-- A job ends now. Without `counts`, which its owner tells, what is stored of it counts.
local function note_usage(job, status, counts)
  local hour = math.floor(NOW / 3600000)
  local hash = key('use', hour, job.tn)
  local name = math.floor(NOW / 60000) % 60 .. (job.bt and ' 1 ' or ' 0 ') .. (job.key or '-') .. ' ' .. job.mdl
  local stored, created, started = call('HGET', hash, name), tonumber(job.ct), tonumber(job.sts or '')
  local prompt, cached, answer, drafted, requests, failures, waited, computed = sums_in(stored)
  call('HSET', hash, name, struct.pack(SUMS,
    prompt + (counts and counts[1] or 0),
    cached + (counts and counts[3] or 0),
    answer + (counts and counts[2] or tonumber(job.n)),
    drafted + (counts and counts[4] or 0),
    requests + 1,
    failures + ((status == 'failed' or status == 'expired') and 1 or 0),
    waited + math.max(0, (started or NOW) - created),
    computed + (started and math.max(0, NOW - started) or 0)))
  if not stored then
    call('EXPIRE', hash, KEPT_S)
    call('ZADD', key('fold'), (hour + 1) * 3600000 + FOLD_AFTER_MS, 'm ' .. hour .. ' ' .. job.tn)
    call('ZADD', key('usage'), hour, job.tn)
  end
end
