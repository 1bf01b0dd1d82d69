#!lua flags=no-writes
-- The account of one tenant between two hours, whatever was folded of it.
-- KEYS    P
-- ARGV    tenant, first and last hour since 1970
-- Reply   {{'m' | 'h' | 'd', number of the hour, the day or the month, {field, sums...}}...}
--- @include clock
local KEPT_H = 24 * 430
local hour = math.floor(NOW / 3600000)
local tenant = ARGV[1]
local first, last = math.max(tonumber(ARGV[2]), hour - KEPT_H), math.min(tonumber(ARGV[3]), hour + 1)
local FOLDED_H, FOLDED_D = 3, 9  -- hours and days from the beginning of what is folded to the time at which it is
local out = {}

local function add(kind, name, from, to)
  for number = from, to do
    local found = call('HGETALL', key(name, string.format('%d', number), tenant))
    if found[1] then out[#out + 1] = {kind, number, found} end
  end
end

-- All that was due before is folded.
local due = tonumber(call('ZRANGE', key('fold'), 0, 0, 'WITHSCORES')[2] or NOW)
add('m', 'use', math.max(first, math.floor(due / 3600000) - FOLDED_H), last)
add('h', 'useh', math.max(math.floor(first / 24), math.floor(due / 86400000) - FOLDED_D), math.floor(last / 24))
add('d', 'used', math.floor(first / 720), math.floor(last / 720))
return out
