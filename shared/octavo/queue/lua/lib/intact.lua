--- @include keys
--- @include errors
-- Whether a job is damaged: its hash is not what every transition relies on, because something else wrote to this server.

local NAMES = {'n', 'ep', 'crashes', 'bytes', 'est', 'cost', 'ct', 'seed', 'ret', 'st', 'mdl', 'tn', 'cls', 'body',
  'lane', 'tries', 'key', 'tp', 'dl', 'qdl', 'sts', 'cn', 'solo', 'w', 'rm', 'wk', 'rk', 'hd', 'nb', 'ltr', 'pz'}
local REQUIRED, FIRST_LEFT_OUT = 14, 19  -- of these names: numbers that may be left out begin there
local RETENTION = '^%d%d?%d?%d?%d?%d?%d?%d?%d? %d%d?%d?%d?%d?%d?%d?%d?%d? %d%d?%d?%d?%d?%d?%d?%d?%d?$'
local CLASS = {high = true, normal = true, batch = true}
local ENDED = {completed = true, failed = true, cancelled = true, expired = true}

local function is_gone(id) return call('EXISTS', key('j', id)) == 0 end

-- A whole number that arithmetic here and in Redis leaves exact. A seed has up to 63 bits.
local function is_number(value, digits)
  return value and #value <= (digits or 15) and string.find(value, '^%d+$') ~= nil
end

-- What every end of a job needs.
local function can_end(job)
  return is_number(job.n) and is_number(job.ep) and is_number(job.bytes) and is_number(job.est) and is_number(job.cost)
    and is_number(job.ct) and (not job.kb or is_number(job.kb)) and job.mdl and job.tn and CLASS[job.cls] and job.ret
    and string.find(job.ret, RETENTION)
end

-- What a job is, or nil if it is damaged. It has not ended.
local function intact(id)
  local values = redis.pcall('HMGET', key('j', id), unpack(NAMES))
  if is_error(values) then return nil end
  local job = {}
  for i, name in ipairs(NAMES) do
    if i <= REQUIRED and not values[i] then return nil end
    job[name] = values[i]
  end
  if not can_end(job) or not is_number(job.crashes) or not is_number(job.seed, 19) then return nil end
  for i = FIRST_LEFT_OUT, #NAMES do
    if values[i] and not is_number(values[i]) then return nil end
  end
  if job.st == 'queued' then
    local kind = string.match(job.lane or '', '^(%l+):=.') or job.lane
    return (kind == 'resume' or kind == 'solo' or job.lane == job.cls) and job or nil
  end
  return job.st == 'running' and job or nil
end
