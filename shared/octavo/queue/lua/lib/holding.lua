--- @include clock
--- @include counters
--- @include entering
--- @include bell
--- @include running
-- Jobs of an API key at its cap of running jobs are held: each leaves its tenant's line when its turn comes, so that claims
-- look at it once, and one comes back, to its place, when a job of the key ends. P:held:<tenant>:<key> has '<class> <id>
-- <model>' by order of arrival, P:parked:<model> 'held <tenant> <key>' beside tenants; `hd` of a job says that it is held.

-- A queued job, the first of its line. It goes on waiting, so it stays counted. `leave` takes it out of the line.
local function hold(id, job, leave)
  local at, is_counted = call('ZSCORE', key('b', job.cls, job.tn, job.mdl), id) or NOW, job.wk
  job.wk = nil
  leave(id, job, 0)
  job.wk = is_counted
  call('HSET', key('j', id), 'hd', 1)
  call('ZADD', key('held', job.tn, job.key), at, job.cls .. ' ' .. id .. ' ' .. job.mdl)
  call('ZADD', key('parked', job.mdl), NOW, 'held ' .. job.tn .. ' ' .. job.key)
end

-- The first that is held goes back. False if none is.
local function let_one_go(tenant, api_key)
  local held = key('held', tenant, api_key)
  local member, at = unpack(call('ZRANGE', held, 0, 0, 'WITHSCORES'))
  if not member then return false end
  call('ZREM', held, member)
  local class, id, model = string.match(member, '^(%l+) (%S+) (.+)$')
  if class and call('HDEL', key('j', id), 'hd') == 1 then
    local is_parked = call('ZSCORE', key('parked', model), class .. ' ' .. tenant)
    if not is_parked and not call('ZSCORE', key('v', class, model), tenant) then enter_fair(class, tenant, model) end
    call('ZADD', key('b', class, tenant, model), at, id)
    ring(model)
  end
  return true
end

-- A job of a key that had a place under its cap has ended.
local function free_place(job)
  bump(key('q', job.tn), count_of_key(job.key), -1)
  if not is_key_at_cap(job.tn, job.mdl, job.key) then let_one_go(job.tn, job.key) end
end
