#!lua
-- A write that changes nothing: refused by a server that would refuse a job.   -> 1
redis.call('SET', KEYS[1] .. ':probe', '1', 'EX', 60)
return 1
