#!lua flags=allow-oom
-- Make a model known, so that jobs for it are accepted.
-- KEYS    P
-- ARGV    name card
-- Reply   1
--- @include keys
call('HSET', key('models'), ARGV[1], ARGV[2])
return 1
