#!lua flags=allow-oom
-- A queued job ends at once; the owner of a running one finds the mark in its next reply.
-- ARGV: id tenant('' for any)   -> status now, '' if there is no such job of the tenant
local id, tenant = ARGV[1], ARGV[2]
local job = fields(id, 'st', 'cx', 'tn')
if not job.st or (tenant ~= '' and job.tn ~= tenant) then return '' end
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
