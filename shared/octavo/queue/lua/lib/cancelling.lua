--- @include live
--- @include job
--- @include intact
--- @include stops

-- The end of a job that is not wanted any more: its status now, '' if there is no such job of the tenant ('' for any).
local function cancel(id, tenant)
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
end
