#!lua flags=allow-oom
-- Stop sending a job's live entries to a subscriber.
-- KEYS    P
-- ARGV    id subscriber
-- Reply   1 if it was attached
--- @include subscribers
local id, subscriber = ARGV[1], ARGV[2]
local subscribers = call('HGET', key('j', id), 'gw')
if not subscribers then return 0 end
local kept = without(subscribers, subscriber)
if kept == subscribers then return 0 end
set_subscribers(id, kept)
return 1
