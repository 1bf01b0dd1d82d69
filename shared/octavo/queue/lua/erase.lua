#!lua flags=allow-oom
-- Take back what came with a job and what it generated. One that has not ended is cancelled, and what it generated goes
-- a minute after its end. The hash stays for a minute as well: a client that submits the job again, since it does not
-- know whether the server still has it, must not revive it.
-- KEYS    P
-- ARGV    id tenant('' for any)
-- Reply   status now, '' if there is no such job of the tenant
-- Events  as of cancel
--- @include cancelling
local LEFT_S = 60
local id, tenant = ARGV[1], ARGV[2]
local status = cancel(id, tenant)
if status == '' then return '' end
local hash = key('j', id)
call('HDEL', hash, 'att', 'kb')
--- @include stored
local its_tenant = read(id, 'tn')
if its_tenant then forget_stored(id, its_tenant) end
call('HSET', hash, 'era', 1)
if not ENDED[status] then
  call('HSET', hash, 'ret', LEFT_S .. ' ' .. LEFT_S .. ' ' .. LEFT_S)
  return status
end
local owner, idem = read(id, 'tn', 'idem')
call('HDEL', hash, 'body', 'meta', 'err')
call('EXPIRE', hash, LEFT_S)
call('DEL', key('t', id), key('r', id))
if idem then call('DEL', key('i', owner, idem)) end
call('ZADD', key('x'), NOW + LEFT_S * 1000, id .. ' ' .. owner)
return status
