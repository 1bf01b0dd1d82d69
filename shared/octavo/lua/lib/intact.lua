--- @include keys
--- @include errors
-- Whether a job is damaged: its hash lacks what every transition relies on, because something else wrote to this server.

local NAMES = {'n', 'ep', 'crashes', 'bytes', 'est', 'cost', 'ct', 'seed', 'ret', 'st', 'mdl', 'tn', 'cls', 'body',
  'lane', 'dl', 'qdl', 'sts'}
local REQUIRED = 14  -- of these names
local NUMBERS, RETENTION = 9, '^%d+,%d+,%d+,%d+,%d+,%d+,%d+,%d+,%d+ %d+ %d+$'  -- as these are, with commas between

local function is_gone(id) return call('EXISTS', key('j', id)) == 0 end

-- What a job is, or nil if it is damaged. It has not ended.
local function intact(id)
  local values = redis.pcall('HMGET', key('j', id), unpack(NAMES))
  if is_error(values) then return nil end
  local job = {}
  for i, name in ipairs(NAMES) do
    if i <= REQUIRED and not values[i] then return nil end
    job[name] = values[i]
  end
  if not string.find(table.concat(values, ',', 1, NUMBERS), RETENTION) then return nil end
  if (job.dl and not tonumber(job.dl)) or (job.qdl and not tonumber(job.qdl)) then return nil end
  if job.st == 'queued' and not job.lane then return nil end
  return job
end
