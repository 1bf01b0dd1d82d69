#!lua flags=allow-oom
-- Stop sending a job's live entries to a subscriber.
-- KEYS    P
-- ARGV    id subscriber
-- Reply   1 if it was attached
--- @include keys
local id, subscriber = ARGV[1], ARGV[2]
local subscribers = call('HGET', key('j', id), 'gw')
if not subscribers then return 0 end
if subscribers == subscriber then return call('HDEL', key('j', id), 'gw') end
local first, last = string.find(' ' .. subscribers .. ' ', ' ' .. subscriber .. ' ', 1, true)
if not first then return 0 end
local kept = string.sub(subscribers, 1, math.max(0, first - 2)) .. string.sub(subscribers, first == 1 and last or last - 1)
call('HSET', key('j', id), 'gw', kept)
return 1
