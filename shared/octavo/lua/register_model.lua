#!lua flags=allow-oom
-- Make a model known, so that jobs for it are accepted.   ARGV: name card   -> 1
redis.call('HSET', key('models'), ARGV[1], ARGV[2])
return 1
