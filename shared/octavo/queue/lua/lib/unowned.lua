--- @include ending
--- @include terminal
-- Ends of jobs that are not their owner's doing.
local LATE = 'the job did not end within its timeout_s: allow more time or ask for fewer tokens'
local UNSTARTED = 'no worker started the job within its queue_timeout_s: allow more time or add workers'
local UNEQUAL = 'no worker that serves the same as the one before took the job over within its queue_timeout_s: start one '
  .. 'with the same model files and hardware, or submit the job again'

local function conclude_alone(id, status, code, message, redrivable)
  local job = job_to_end(id)
  local facts = code and {'err', cmsgpack.pack({1, 'x', code, message})} or {}
  conclude(id, job, status, terminal(status, job.n, code, message), false, facts, redrivable)
end

local function expire(id, message)
  conclude_alone(id, 'expired', 'expired', message)
end

-- Its time to start is over.
local function expire_unstarted(id)
  expire(id, string.find(read(id, 'lane') or '', '=', 1, true) and UNEQUAL or UNSTARTED)
end

local function end_marked(id, reason)
  if reason == 'expired' then expire(id, LATE) else conclude_alone(id, 'cancelled') end
end
