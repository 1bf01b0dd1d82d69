#!lua
-- Make a file known whose bytes are stored. Repeating it changes nothing.
-- KEYS    P
-- ARGV    msgpack of a map: id tenant name purpose bytes sha cap (bytes that the tenant may keep unless its limits say
--         otherwise), expires_s where it expires
-- Reply   {'ok', time of creation in ms, time of expiry in ms or ''} | {'full', bytes that the tenant keeps, bytes that it
--         may keep}
--- @include files
--- @include limits
local file = cmsgpack.unpack(ARGV[1])
if call('EXISTS', key('f', file.id)) == 0 then
  local kept = tonumber(call('HGET', key('fq'), file.tenant) or 0)
  local most = limit_in(call('HGET', key('lim', file.tenant), '*'), 'file_bytes') or file.cap
  if kept + file.bytes > most then return {'full', kept, most} end
  note_file(file)
end
local created, expires = unpack(call('HMGET', key('f', file.id), 'ct', 'exp'))
return {'ok', created, expires or ''}
