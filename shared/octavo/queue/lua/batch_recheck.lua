#!lua flags=allow-oom
-- Look at open jobs of a batch that were silent for long. One that has ended all the same was ended by a version that does
-- not know of batches, or is damaged or gone: it becomes an ended one.
-- KEYS    P
-- ARGV    batch token member (of P:bto)...
--         none: then what something else has put among the jobs is removed, and what it has moved is put back
-- Reply   number of jobs that had ended, -1 if the batch is another owner's
--- @include batch
--- @include batch_jobs
local id, token, found = ARGV[1], ARGV[2], 0
if not owned_state(id, token) then return -1 end
if #ARGV == 2 then
  for _, kind in ipairs({'bto', 'bte'}) do
    for _, member in ipairs(call('ZRANGE', key(kind, id), 0, -1)) do
      local place = string.match(member, '^(%d%d?%d?%d?%d?) %d%d?%d? %S+$')
      if place then call('ZADD', key(kind, id), place, member) else call('ZREM', key(kind, id), member) end
    end
  end
end
for i = 3, #ARGV do
  local member = ARGV[i]
  local place, job = string.match(member, '^(%d+) %d+ (%S+)$')
  local state = job and read(job, 'st')
  if state ~= 'queued' and state ~= 'running' and call('ZREM', key('bto', id), member) == 1 then
    call('ZADD', key('bte', id), place, member)
    for _, kind in ipairs({'j', 't', 'r'}) do call('PERSIST', key(kind, job)) end
    local tenant = state and read(job, 'tn')
    if tenant then call('ZREM', key('x'), job .. ' ' .. tenant) end
    found = found + 1
  end
end
return found
