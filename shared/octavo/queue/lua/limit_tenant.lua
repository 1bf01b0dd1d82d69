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
if asked.values.running then unpark(tenant) end
return text
