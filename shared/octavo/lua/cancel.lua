#!lua flags=allow-oom
-- A queued job ends at once; the owner of a running one finds the mark in its next reply.
-- ARGV: id   -> status now, '' if there is no such job
local id = ARGV[1]
local job = fields(id, 'st', 'cx')
if not job.st then return '' end
if (job.st == 'queued' or job.st == 'running') and not is_intact(id) then
  end_damaged(id, {})
  publish()
  return 'failed'
end
if job.st == 'queued' then
  conclude_alone(id, 'cancelled')
  publish()
  return 'cancelled'
end
if job.st == 'running' and not job.cx then mark_stop(id, 'cancelled') end
return job.st
