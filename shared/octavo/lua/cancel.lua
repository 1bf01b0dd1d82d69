#!lua flags=allow-oom
-- A queued job ends at once; the owner of a running one finds the mark in its next reply. After a restart of the server a
-- queued job may be one that ended: it is marked, too, and ends in some seconds unless its end is told again.
-- KEYS    P
-- ARGV    id tenant('' for any)
-- Reply   status now, '' if there is no such job of the tenant
-- Events  the end of a queued job to subscribers and P:ev; a damaged one to P:dlq
--- @include live
--- @include job
--- @include intact
--- @include stops
local id, tenant = ARGV[1], ARGV[2]
local status, mark, owner = read(id, 'st', 'cx', 'tn')
if not status or (tenant ~= '' and owner ~= tenant) then return '' end
if (status == 'queued' or status == 'running') and not intact(id) then
  --- @include damage
  end_damaged(id, {})
  publish()
  return 'failed'
end
if status == 'queued' then
  --- @include grace
  local until_when = grace()
  if NOW < until_when then
    mark_stop(id, 'cancelled', until_when)
    return status
  end
  --- @include unowned
  conclude_alone(id, 'cancelled')
  publish()
  return 'cancelled'
end
if status == 'running' and not mark then mark_stop(id, 'cancelled') end
return status
