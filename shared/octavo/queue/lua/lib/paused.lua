--- @include pauses
--- @include job
-- Jobs whose time to start would be over, had their lane not been paused, wait in P:paused:<class>:<model>, so that no reaper
-- looks at them again and again.

local function keep_paused(id, job, deadline)
  call('ZADD', key('paused', job.cls, job.mdl), job.qdl, id)
  if deadline then call('ZADD', key('D'), deadline, id) else call('ZREM', key('D'), id) end
end

-- The time of those in lanes that go on runs again.
local function let_go_on(most)
  if call('EXISTS', key('pauses')) == 0 then return end
  for _, lane in ipairs(call('HKEYS', key('pauses'))) do
    local class, model = string.match(lane, '^(%l+) (.+)$')
    local since = class and select(2, pauses_of(class, model))
    for _, id in ipairs(since == 0 and call('ZRANGE', key('paused', class, model), 0, most - 1) or {}) do
      call('ZREM', key('paused', class, model), id)
      local job = fields(id, 'st', 'lane', 'cls', 'mdl', 'qdl', 'pz', 'dl')
      if job.st == 'queued' and tonumber(job.qdl) and job.mdl and job.cls then
        call('ZADD', key('D'), math.min(start_limit(job), tonumber(job.dl) or math.huge), id)
      end
    end
  end
end
