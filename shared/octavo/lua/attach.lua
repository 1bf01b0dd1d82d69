#!lua flags=allow-oom
-- Send a job's live entries to a subscriber as well.   ARGV: id subscriber   -> tokens stored, -1 if no such job
local id, subscriber = ARGV[1], ARGV[2]
local job = fields(id, 'st', 'n', 'gw')
if not job.st then return -1 end
if job.st == 'queued' or job.st == 'running' then
  local others = without(job.gw or '', subscriber)
  set_subscribers(id, others == '' and subscriber or others .. ' ' .. subscriber)
end
return tonumber(job.n)
