#!lua flags=allow-oom
-- Renew leases; say which jobs are no longer the worker's and which should stop.
-- KEYS    P
-- ARGV    worker lease_ms info (id token)...
-- Reply   {{lost id...}, {id, reason, ...}}
--- @include clock
--- @include job
--- @include stops
--- @include alive
local worker, lease_ms, info = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local MOST = 1000  -- arguments of one ZADD
local lease, lost, stop, renewed = NOW + lease_ms, {}, {}, {}

local function renew()
  if renewed[1] then call('ZADD', key('L'), unpack(renewed)) end
  renewed = {}
end

for i = 4, #ARGV, 2 do
  local id = ARGV[i]
  local status, token, mark, deadline = read(id, 'st', 'tok', 'cx', 'dl')
  if status ~= 'running' or token ~= ARGV[i + 1] then
    lost[#lost + 1] = id
  else
    renewed[#renewed + 1] = lease
    renewed[#renewed + 1] = id
    if #renewed >= MOST then renew() end
    local reason = stop_reason(id, mark, deadline)
    if reason then
      stop[#stop + 1] = id
      stop[#stop + 1] = reason
    end
  end
end
renew()
note_alive(worker, lease_ms, info)
return {lost, stop}
