#!lua
-- Accept a job, or say why not. Repeating it with the same id changes nothing.
-- KEYS    P
-- ARGV    msgpack of a map: id body tenant model class cost est seed retention cap_jobs cap_bytes; where there is one
--         idempotency_key with hash (of the body), timeout_ms queue_timeout_ms metadata attachment subscriber, key (the id
--         of an API key), trace (the context of its trace), max_tokens, not_before (ms);
--         several (true: it has several sequences); again (true: a server that came back may have forgotten it) with
--         settled (the model that an alias stood for then); notify or background (true: its end is an
--         event of a job, or of a response); of a line of a batch: batch, batch_token of its owner, place
--         and index. What a later version adds has a name.
-- Reply   {'ok', id, created, time of acceptance in ms, model, rates...} | {'conflict', id} | {'unknown', model...} |
--         {'full', what} | {'fenced'}: the batch is another owner's, takes no lines, or is beyond this one |
--         {'suspended'} | {'long', limit, scope} | {'limited', limit, scope, what it holds at most, what the job takes, ms
--         after which it has room or -1 for never, rates...}
--         Rates are of requests and of tokens: what a bucket holds at most, what is left, ms until it is full, or -1 each.
--- @include clock
--- @include counters
--- @include entering
--- @include bell
--- @include listing
--- @include aliases
--- @include limits
local new = cmsgpack.unpack(ARGV[1])
local id, tenant, idem, model, class = new.id, new.tenant, new.idempotency_key, new.model, new.class
local size = #new.body + #(new.attachment or '')
local MOST_BYTES = 2097152  -- of one job

if new.batch then
  --- @include batch
  local state = owned_state(new.batch, new.batch_token)
  if state ~= 'in_progress' or new.place < number_of(new.batch, 'cur') then return {'fenced'} end
end
if call('EXISTS', key('j', id)) == 1 then
  --- @include job
  local at, of = read(id, 'ct', 'mdl')
  return {'ok', id, 1, tonumber(at or '') or NOW, of or model}
end
if idem then
  local known = call('GET', key('i', tenant, idem))
  if known then
    local old, old_hash = string.match(known, '(%S+) (%S+)')
    if old_hash == new.hash or new.batch then return {'ok', old, 0, 0} else return {'conflict', old} end
  end
end
local asked = model
model = new.settled or announced(model) or model
if call('HEXISTS', key('models'), model) == 0 then
  local known = {'unknown', unpack(call('HKEYS', key('models')))}
  for _, alias in ipairs(call('HKEYS', key('aliases'))) do
    if announced(alias) then known[#known + 1] = alias end
  end
  return known
end
local total = call('HMGET', key('q'), 'queued', 'bytes')
local function full(what, queued, bytes)
  local known_jobs = call('ZCARD', key('jobs'))
  if queued > known_jobs or bytes > known_jobs * MOST_BYTES then
    return redis.error_reply('DAMAGED more is counted than there are jobs')
  end
  return {'full', what}
end
local queued, bytes = tonumber(total[1] or 0), tonumber(total[2] or 0)
local of_tenant = tonumber(call('HGET', key('q', tenant), 'queued') or 0)
if queued >= new.cap_jobs then return full('jobs', queued, 0) end
if bytes + size > new.cap_bytes then return full('bytes', 0, bytes) end

local scopes = scopes_of(model, new.key)
local limits = limits_of(tenant, scopes)
if of_tenant >= (limits[1] and limits[1].waiting or WAITING) then return full('waiting', of_tenant, 0) end
local weight, charged, rates = nil, nil, {}
if next(limits) then
  --- @include charging
  --- @include caps
  -- A job that was accepted once, and which the server has forgotten, is accepted again.
  local refusal = not new.again and beyond_caps(limits, new, model, size)
  if refusal then return refusal[1] == 'full' and full(unpack(refusal, 2)) or refusal end
  local buckets = drawn_on(scopes, limits, new.cost, new.batch)
  if buckets[1] then
    refill_all(tenant, buckets)
    local short, wait = lacking_in(buckets, new.batch)
    local narrowest = short[1]
    if narrowest and not new.again then
      if wait > 0 then store(tenant, short) end
      local limit, scope = BUCKETS[narrowest.kind], scopes[narrowest.scope]
      return {'limited', limit, scope, narrowest.capacity, narrowest.takes, wait, unpack(rates_of(buckets))}
    end
    charged = draw(tenant, buckets)
    rates = rates_of(buckets)
  end
  weight = limits[1] and limits[1].weight
end

local job = {'st', 'queued', 'mdl', model, 'tn', tenant, 'cls', class, 'lane', class, 'n', 0, 'ep', 0, 'crashes', 0,
  'ct', NOW, 'body', new.body, 'bytes', size, 'est', new.est, 'cost', new.cost, 'seed', new.seed, 'ret', new.retention}
local function note(field, value)
  if value then
    job[#job + 1] = field
    job[#job + 1] = value
  end
end

local from = math.max(NOW, new.not_before or 0)
local is_later = from > NOW or nil
local deadline = new.timeout_ms and from + new.timeout_ms
local start_by = new.queue_timeout_ms and from + new.queue_timeout_ms
local due = math.min(deadline or math.huge, start_by or math.huge)
note('meta', new.metadata)
note('as', asked ~= model and asked)
note('att', new.attachment)
note('kb', new.attachment and #new.attachment)
note('gw', new.subscriber)
note('nf', new.background and 'response' or new.notify and 'job')
note('dl', deadline)
note('qdl', start_by)
note('qt', new.queue_timeout_ms)
note('idem', idem)
note('key', new.key)
note('tp', new.trace)
note('nb', is_later and from)
note('ltr', is_later and 1)
if start_by and call('EXISTS', key('pauses')) == 1 then
  --- @include pauses
  note('pz', (pauses_of(class, model)))
end
note('chg', charged)
local is_counted = limits[3] and limits[3].waiting
note('wk', is_counted and 1)
note('w', weight ~= 1000 and weight)
if new.several then note('run', new.again and 'an earlier one' or string.match(call('INFO', 'server'), 'run_id:(%x+)')) end
call('HSET', key('j', id), unpack(job))
if due < math.huge then call('ZADD', key('D'), due, id) end
if idem then call('SET', key('i', tenant, idem), id .. ' ' .. new.hash) end
list_job(id, tenant, new.batch)
if new.batch then
  local place = string.format('%d %d', new.place, new.index)
  call('HSET', key('j', id), 'bt', new.batch .. ' ' .. place)
  call('ZADD', key('bto', new.batch), new.place, place .. ' ' .. id)
end
local place = {mdl = model, tn = tenant, cls = class, ltr = is_later}
count_queued(place, 1)
count(tenant, 'bytes', size)
if new.attachment then
  --- @include stored
  note_stored(id, tenant, #new.attachment)
end
if is_counted then bump(key('q', tenant), 'waiting k ' .. new.key, 1) end
if is_later then
  call('ZADD', key('later'), from, id)
  return {'ok', id, 1, NOW, model, unpack(rates)}
end
local has_cap = (limits[1] and limits[1].running) or (limits[2] and limits[2].running)
local is_parked = has_cap and call('SISMEMBER', key('pk', tenant), class .. ' ' .. model) == 1
enter_class(id, place, is_parked)
if not is_parked then ring(model) end
return {'ok', id, 1, NOW, model, unpack(rates)}
