#!lua flags=allow-oom
-- What an owner says of a search that has published nothing yet. It is no part of the stream: it may be lost, and only the
-- latest counts.   ARGV: id token payload   -> 1 if the caller owns the job
local id, token, payload = unpack(ARGV)
local job = fields(id, 'st', 'tok', 'gw')
if job.st ~= 'running' or job.tok ~= token then return 0 end
redis.call('HSET', key('j', id), 'pg', payload)
tell(id, job.gw, 'progress', payload)
publish()
return 1
