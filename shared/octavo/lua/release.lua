#!lua flags=allow-oom
-- An owner gives jobs back: because it stops (crashed 0) or because its engine died (crashed 1).
-- ARGV: crashed(0|1) (id token)...   -> number of jobs given back
local given = 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local job = fields(id, 'st', 'tok')
  if job.st == 'running' and job.tok == ARGV[i + 1] then
    if is_intact(id) then give_back(id, ARGV[1] == '1') else end_damaged(id, {}) end
    given = given + 1
  end
end
publish()
return given
