#!lua
-- Change limits of a tenant in one scope. They hold from this call on, for every client and gateway.
-- KEYS    P
-- ARGV    msgpack of a map: tenant; scope ('*', 'm <model>' or 'k <key>'); values, a map of names to numbers, -1 for a limit
--         that goes
-- Reply   the limits of the scope now, ' <name>=<number>...'
--- @include buckets
--- @include parking
local asked = cmsgpack.unpack(ARGV[1])
local tenant, scope = asked.tenant, asked.scope
local hash, names = key('lim', tenant), {}
local limits = limits_in(call('HGET', hash, scope) or '')

-- Until now buckets filled as they did before the change.
local buckets = {}
for kind = 1, #BUCKETS do
  local bucket = bucket_of({scope}, {limits}, 1, kind)
  if bucket and call('HEXISTS', key('bk', tenant), bucket.field) == 1 then buckets[#buckets + 1] = bucket end
end
if buckets[1] then
  refill_all(tenant, buckets)
  store(tenant, buckets)
end

for name, value in pairs(asked.values) do
  limits[name] = value >= 0 and value or nil
  if value < 0 then call('HDEL', key('bk', tenant), scope .. ' ' .. name) end
end
for name in pairs(limits) do names[#names + 1] = name end
table.sort(names)
local text = ''
for _, name in ipairs(names) do text = text .. string.format(' %s=%d', name, limits[name]) end
if text == '' then call('HDEL', hash, scope) else call('HSET', hash, scope, text) end
call('ZADD', key('limited'), 0, tenant)
-- Jobs that were claimed before their model had a cap.
local model = string.match(scope, '^m (.+)$')
if model and (asked.values.running or -1) >= 0 then
  --- @include job
  --- @include counters
  local sets = {'L', 'b:resume:' .. model, 'b:solo:' .. model, 'bound:' .. model}
  for _, name in ipairs(sets) do
    for _, id in ipairs(call('ZRANGE', key(name), 0, -1)) do
      local of, its_model, is_known = read(id, 'tn', 'mdl', 'rm')
      if of == tenant and its_model == model and not is_known then
        call('HSET', key('j', id), 'rm', 1)
        bump(key('q', tenant), count_of_model(model), 1)
      end
    end
  end
end
if asked.values.running then unpark(tenant) end
return text
