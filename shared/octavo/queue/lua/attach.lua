#!lua flags=allow-oom
-- Send a job's live entries to a subscriber as well. One that is one too many takes the place of the one that came first.
-- Nothing changes for a user that may only read.
-- KEYS    P
-- ARGV    id subscriber
-- Reply   tokens stored, -1 if there is no such job
--- @include job
local id, subscriber = ARGV[1], ARGV[2]
local status, stored, subscribers = read(id, 'st', 'n', 'gw')
if not status then return -1 end
local may_write = redis.acl_check_cmd('HSET', key('j', id), 'gw', subscriber)  -- a refusal would be logged
if may_write and (status == 'queued' or status == 'running') then
  if not subscribers then
    call('HSET', key('j', id), 'gw', subscriber)
  elseif subscribers ~= subscriber then
    --- @include subscribers
    local names = without(names_of(subscribers), {[subscriber] = true})
    if #names == MOST_SUBSCRIBERS then table.remove(names, 1) end
    names[#names + 1] = subscriber
    set_subscribers(id, names)
  end
end
return tonumber(stored)
