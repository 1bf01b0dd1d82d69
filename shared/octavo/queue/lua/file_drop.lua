#!lua flags=allow-oom
-- Forget a file, whose bytes may go then. The input of a batch that has not ended stays.
-- KEYS    P
-- ARGV    id tenant('' for any) expired(1: only if its time is over)
-- Reply   ok | used | '' if there is no such file of the tenant, or its time is not over
--- @include files
local id, tenant, expired = ARGV[1], ARGV[2], ARGV[3] == '1'
local owner, bytes, uses, at = unpack(call('HMGET', key('f', id), 'tn', 'bytes', 'uses', 'exp'))
if not owner then
  call('ZREM', key('fx'), id)
  return ''
end
if tenant ~= '' and owner ~= tenant then return '' end
if expired and not (at and NOW >= tonumber(at)) then return '' end
if uses then return 'used' end
call('DEL', key('f', id))
call('ZREM', key('fx'), id)
call('ZREM', key('files'), id, ':' .. owner .. ':' .. id)
if call('HINCRBY', key('fq'), owner, -bytes) <= 0 then call('HDEL', key('fq'), owner) end
return 'ok'
