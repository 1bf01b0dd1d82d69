#!lua
-- Change limits of a tenant in one scope. They hold from this call on, for every client and gateway.
-- KEYS    P
-- ARGV    msgpack of a map: tenant; scope ('*', 'm <model>' or 'k <key>'); values, a map of names to numbers, -1 for a limit
--         that goes
-- Reply   the limits of the scope now, ' <name>=<number>...'
--- @include buckets
--- @include parking
--- @include job
--- @include counters
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
-- Jobs that were claimed before their model or their key had a cap.
local function count_claimed(mark, field, count, name)
  local sets = {'L'}
  for _, model in ipairs(call('HKEYS', key('models'))) do
    for _, kind in ipairs({'b:resume:', 'b:solo:', 'bound:'}) do sets[#sets + 1] = kind .. model end
  end
  for _, set in ipairs(sets) do
    for _, id in ipairs(call('ZRANGE', key(set), 0, -1)) do
      local of, found, is_counted = read(id, 'tn', field, mark)
      if of == tenant and found == name and not is_counted then
        call('HSET', key('j', id), mark, 1)
        bump(key('q', tenant), count, 1)
      end
    end
  end
end

if asked.values.running then
  --- @include holding
  local kind, name = string.match(scope, '^([mk]) (.+)$')
  local has_cap = asked.values.running >= 0
  if kind == 'm' and has_cap then count_claimed('rm', 'mdl', count_of_model(name), name) end
  if kind == 'k' then
    if has_cap then count_claimed('rk', 'key', count_of_key(name), name) end
    local are_capped, all = false, call('HGETALL', hash)
    for i = 1, #all, 2 do
      are_capped = are_capped or (string.find(all[i], '^k ') and limit_in(all[i + 1], 'running')) ~= nil
    end
    if are_capped then call('HSET', hash, KEYS_HAVE_CAPS, 1) else call('HDEL', hash, KEYS_HAVE_CAPS) end
    while let_one_go(tenant, name) do end  -- claims hold again what is too much
  end
  unpark(tenant)
end
return text
