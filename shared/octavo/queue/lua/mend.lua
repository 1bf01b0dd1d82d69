#!lua flags=allow-oom
-- Something else wrote to this server: find what is damaged, set it aside, and make all that can be told from the jobs
-- anew. It reads everything, so it is called only where a script failed on what it found, once in some seconds at most.
-- KEYS    P
-- ARGV    none
-- Reply   1 if it was done
-- Events  ends of damaged jobs to subscribers and P:ev, and to P:dlq
--- @include clock
--- @include job
--- @include counters
--- @include fair
--- @include bell
--- @include intact
--- @include live
--- @include damage
local PAUSE_MS, LEASE_MS = 2000, 5000
local KINDS = {
  t = 'stream', r = 'string', b = 'zset', v = 'zset', V = 'string', lf = 'string', pass = 'hash', bell = 'list',
  blocked = 'string', L = 'zset', D = 'zset', x = 'zset', jobs = 'zset', q = 'hash', i = 'string', c = 'string',
  W = 'string', workers = 'zset', ['in'] = 'list', a = 'list', pins = 'hash', models = 'hash', reaper = 'hash',
  traits = 'hash', aliases = 'hash', ev = 'stream', dlq = 'stream', seq = 'string', died = 'string', bound = 'zset',
  f = 'hash', files = 'zset', fx = 'zset', fq = 'hash', mark = 'string', bt = 'hash', bto = 'zset', bte = 'zset',
  btp = 'list', bts = 'zset', btL = 'zset', batches = 'zset', k = 'hash', ks = 'zset', ka = 'hash', kas = 'zset',
  pj = 'hash', pjs = 'zset', he = 'hash', endpoints = 'zset', hs = 'hash', hd = 'hash',
  hq = 'zset', hl = 'zset', hf = 'zset', hr = 'zset', ht = 'zset', ho = 'zset', hx = 'zset', hc = 'hash',
  lim = 'hash', bk = 'hash', limited = 'zset', pk = 'set', kept = 'hash', parked = 'zset', held = 'zset',
  use = 'hash', useh = 'hash', used = 'hash', usage = 'zset', fold = 'zset', tally = 'hash',
  pauses = 'hash', paused = 'zset', later = 'zset',
}
local TOLD_AGAIN = {
  q = true, bound = true, fq = true, pk = true, parked = true, held = true, paused = true, later = true, kept = true,
  hs = true, hq = true, hl = true, hf = true, hr = true, ht = true, ho = true, hx = true,
}
local NUMBER = {V = true, lf = true, seq = true}

local last = key('mended')
local paused = call('TYPE', last).ok ~= 'none' and call('PTTL', last) or 0
if paused > 0 and paused <= PAUSE_MS then return 0 end  -- more if the clock was set back
call('SET', last, 1, 'PX', PAUSE_MS)

local jobs, lanes, tenants, counters, files, batches, endpoints, deliveries = {}, {}, {}, {}, {}, {}, {}, {}
local used, of_tenants = {}, {k = {}, ka = {}, pj = {}}

local function sort_out(name)
  local kind, rest = string.match(name, '^:(%w+):?(.*)$', #P + 1)
  if kind == 'j' then
    jobs[#jobs + 1] = rest
    return
  end
  if not KINDS[kind] then return end
  local found = call('TYPE', name).ok
  if found ~= KINDS[kind] then
    set_aside(name)
    if kind == 't' and read(rest, 'n') then call('HSET', key('j', rest), 'n', 0) end  -- its owner sends all again
  elseif NUMBER[kind] and not string.find(call('GET', name), '^%d+%.?%d*$') then
    call('DEL', name)
  elseif kind == 'b' then lanes[#lanes + 1] = name
  elseif kind == 'v' then tenants[#tenants + 1] = name
  elseif TOLD_AGAIN[kind] then counters[#counters + 1] = name
  elseif kind == 'f' then files[#files + 1] = rest
  elseif kind == 'bt' then batches[#batches + 1] = rest
  elseif of_tenants[kind] then table.insert(of_tenants[kind], rest)
  elseif kind == 'he' then endpoints[#endpoints + 1] = rest
  elseif kind == 'hd' then deliveries[#deliveries + 1] = rest
  elseif kind == 'use' or kind == 'useh' then used[#used + 1] = {kind, rest}
  end
end

local cursor, seen = '0', {}
repeat
  local page = call('SCAN', cursor, 'MATCH', string.gsub(P, '[%[%]*?\\]', '\\%0') .. ':*', 'COUNT', 1000)
  cursor = page[1]
  for _, name in ipairs(page[2]) do
    if not seen[name] then
      seen[name] = true
      sort_out(name)
    end
  end
until cursor == '0'

if tonumber(call('GET', key('seq')) or 0) >= 1e15 or call('EXISTS', key('seq')) == 0 then call('SET', key('seq'), NOW) end
for _, name in ipairs(counters) do call('DEL', name) end
for _, name in ipairs(tenants) do call('DEL', name) end

local function count_places(job)
  if job.rm then bump(key('q', job.tn), 'running m ' .. job.mdl, 1) end
  if job.rk then bump(key('q', job.tn), 'running k ' .. (job.key or ''), 1) end
end

local kept = {}  -- members of lanes that belong there
local function put_back(id, job)
  if job.ltr then
    call('ZADD', key('later'), job.nb or NOW, id)
    return count_queued(job, 1)
  end
  local lane, digest = job.lane, string.match(job.lane, '^%l+:=(.+)$')
  if lane ~= job.cls then
    local name = key('b', lane, job.mdl)
    kept[name .. ' ' .. id] = true
    local at = tonumber(call('ZSCORE', name, id) or NOW)
    if not (at >= 0 and at <= NOW + 60000) then at = NOW end
    call('ZADD', name, at, id)
    bump(key('q', job.tn), 'back', 1)
    count_places(job)
    if digest then
      call('ZADD', key('bound', job.mdl), at, id)
      ring(job.mdl, '=' .. digest)
    end
  else
    local name = key('b', lane, job.tn, job.mdl)
    kept[name .. ' ' .. id] = true
    if not call('ZSCORE', name, id) then call('ZADD', name, job.ct, id) end
    if job.wk then bump(key('q', job.tn), 'waiting k ' .. (job.key or ''), 1) end
    if job.hd then call('HDEL', key('j', id), 'hd') end
    local current = tonumber(call('GET', key('V', job.cls, job.mdl)) or 0)
    call('ZADD', key('v', job.cls, job.mdl), current, job.tn)
  end
  count_queued(job, 1)
  ring(job.mdl)
end

local function keep_running(id, job)
  local lease = tonumber(call('ZSCORE', key('L'), id) or NOW + LEASE_MS)
  call('ZADD', key('L'), math.min(lease, NOW + 3600000), id)
  count(job.tn, 'running', 1)
  count_places(job)
end

-- A hash that was lost is made again by its submitter and counts from zero, its stream does not. The owner sends all
-- again.
local function agree_on_tokens(id, job)
  local stream = key('t', id)
  local stored, has_end = last_offset(stream)
  if stored == job.n and not has_end then return end
  if call('EXISTS', stream) == 1 then set_aside(stream) end
  call('HSET', key('j', id), 'n', 0)
end

local function is_ended(id)
  return ENDED[read(id, 'st')]
end

--- @include mending_batches
mend_files(files)
mend_batches(batches)
--- @include mending_keys
mend_keys(of_tenants.k)
mend_accounts(of_tenants.ka)
mend_projects(of_tenants.pj)
--- @include mending_webhooks
mend_endpoints(endpoints)
mend_deliveries(deliveries)
--- @include mending_usage
--- @include stored
mend_usage(used)

for _, id in ipairs(jobs) do
  local tenant, of_batch = read(id, 'tn', 'bt')
  if tenant then list_job(id, tenant, of_batch) end
  local attached, stored = read(id, 'att', 'kb')
  if attached then note_stored(id, tenant, tonumber(stored) or #attached) end
  if of_batch then put_into_batch(id, of_batch, is_ended(id)) end
  if not is_ended(id) then
    local job = intact(id)
    if not job then
      end_damaged(id, {})
    else
      agree_on_tokens(id, job)
      count(job.tn, 'bytes', job.bytes)
      if job.st == 'queued' then put_back(id, job) else keep_running(id, job) end
      local due = math.min(tonumber(job.dl or math.huge), tonumber(job.qdl or math.huge))
      if due < math.huge and not call('ZSCORE', key('D'), id) then call('ZADD', key('D'), due, id) end
    end
  end
end

for _, name in ipairs(lanes) do
  for _, id in ipairs(call('ZRANGE', name, 0, -1)) do
    if not kept[name .. ' ' .. id] then call('ZREM', name, id) end
  end
end
for _, set in ipairs({'L', 'D'}) do
  for _, id in ipairs(call('ZRANGE', key(set), 0, -1)) do
    local status = read(id, 'st')
    if status ~= 'running' and (set == 'L' or status ~= 'queued') then call('ZREM', key(set), id) end
  end
end
publish()
return 1
