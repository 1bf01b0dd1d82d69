#!lua flags=allow-oom
-- Send a job's live entries to a subscriber as well.
-- KEYS    P
-- ARGV    id subscriber
-- Reply   tokens stored, -1 if there is no such job
--- @include job
--- @include subscribers
local id, subscriber = ARGV[1], ARGV[2]
local status, stored, subscribers = read(id, 'st', 'n', 'gw')
if not status then return -1 end
if status == 'queued' or status == 'running' then
  local others = without(subscribers or '', subscriber)
  set_subscribers(id, others == '' and subscriber or others .. ' ' .. subscriber)
end
return tonumber(stored)
