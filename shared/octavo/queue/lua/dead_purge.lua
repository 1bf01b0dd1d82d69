#!lua flags=allow-oom
-- Take jobs that were given up off the list of dead letters, and drop their requests: they can be submitted again no more.
-- KEYS    P
-- ARGV    (entry of P:dlq, id)...
-- Reply   number of entries that were there
--- @include job
local purged = 0
for i = 1, #ARGV, 2 do
  local entry, id = ARGV[i], ARGV[i + 1]
  if call('XDEL', key('dlq'), entry) == 1 then
    purged = purged + 1
    if read(id, 'st') == 'failed' then call('HDEL', key('j', id), 'body') end
  end
end
return purged
