#!lua flags=allow-oom
-- Whether an offset into the tokens of several sequences still means what it did: not where the server has started anew
-- since the job was accepted, because a job that was begun again may have its sequences' tokens in another order.
-- KEYS    P
-- ARGV    id
-- Reply   1 if it does
--- @include job
local run = read(ARGV[1], 'run')
if not run or run == string.match(call('INFO', 'server'), 'run_id:(%x+)') then return 1 end
return 0
