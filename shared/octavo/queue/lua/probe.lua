#!lua
-- A write that changes nothing: refused by a server that would refuse a job.
-- KEYS    P
-- ARGV    none
-- Reply   1
--- @include keys
call('SET', key('probe'), '1', 'EX', 60)
return 1
