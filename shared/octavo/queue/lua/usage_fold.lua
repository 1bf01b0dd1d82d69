#!lua flags=allow-oom
-- Fold the account of usage: minutes of an hour that is long over become hours of a day, those of a day days of a month of
-- 30. Each field moves, so that what is counted is the same at any time, and any number of callers may fold.
-- KEYS    P
-- ARGV    fields to move at most, about
-- Reply   number of fields that were looked at: 0 if nothing is left to fold now
--- @include sums
--- @include clock
local most, looked = tonumber(ARGV[1]), 0
local HOURS_KEPT_MS, DAYS_KEPT_S = 8 * 86400000, 430 * 86400
local HASHES_AT_ONCE = 16
local FOLDS = {
  m = {from = 'use', into = 'useh', of = 24},
  h = {from = 'useh', into = 'used', of = 30},
}

-- A field into the hash of the longer time. One that cannot be read goes.
local function move(from, into, unit, name, value)
  local rest = string.match(name, '^%d+ ([01] %S+ .+)$')
  if rest then
    local target, sums = unit .. ' ' .. rest, {sums_in(value)}
    local kept = {sums_in(call('HGET', into, target))}
    for i = 1, 8 do kept[i] = kept[i] + sums[i] end
    call('HSET', into, target, struct.pack(SUMS, unpack(kept)))
  end
  call('HDEL', from, name)
end

local function fold(member)
  local kind, number, tenant = string.match(member, '^([mh]) (%d+) (.+)$')
  local how = FOLDS[kind]
  if not how then return call('ZREM', key('fold'), member) end
  local into_number = math.floor(number / how.of)
  local from, into = key(how.from, number, tenant), key(how.into, string.format('%d', into_number), tenant)
  local found = call('HSCAN', from, '0', 'COUNT', most)[2]
  for i = 1, #found, 2 do move(from, into, number % how.of, found[i], found[i + 1]) end
  looked = looked + 1 + #found / 2
  if call('EXISTS', from) == 1 then return end
  call('ZREM', key('fold'), member)
  call('EXPIRE', into, DAYS_KEPT_S)
  if kind == 'm' then
    local due = (into_number + 1) * 86400000 + HOURS_KEPT_MS
    call('ZADD', key('fold'), due, string.format('h %d %s', into_number, tenant))
  end
end

for _, member in ipairs(call('ZRANGEBYSCORE', key('fold'), '-inf', NOW, 'LIMIT', 0, HASHES_AT_ONCE)) do
  if looked < most then fold(member) end
end
call('ZREMRANGEBYSCORE', key('usage'), '-inf', math.floor(NOW / 3600000) - 24 * 400)
return looked
