#!lua flags=allow-oom
-- Renew leases; say which jobs are no longer the worker's and which should stop.
-- ARGV: worker lease_ms info (id token)...   -> {{lost id...}, {id, reason, ...}}
local worker, lease_ms, info = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local lost, stop = {}, {}
for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local job = fields(id, 'st', 'tok', 'cx', 'dl')
  if job.st ~= 'running' or job.tok ~= ARGV[i + 1] then
    table.insert(lost, id)
  else
    redis.call('ZADD', key('L'), NOW + lease_ms, id)
    local reason = stop_reason(id, job)
    if reason then
      table.insert(stop, id)
      table.insert(stop, reason)
    end
  end
end
redis.call('SET', key('W', worker), info, 'PX', math.max(3 * lease_ms, 5000))
redis.call('ZADD', key('workers'), NOW, worker)
return {lost, stop}
