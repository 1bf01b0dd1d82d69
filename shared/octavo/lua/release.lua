#!lua flags=allow-oom
-- An owner gives jobs back: because it stops (crashed 0) or because its engine died (crashed 1).
-- KEYS    P
-- ARGV    crashed(0|1) (id token)...
-- Reply   number of jobs given back
-- Events  ends of cancelled, late, given-up and damaged jobs to subscribers and P:ev, the last two kinds to P:dlq
--- @include intact
--- @include giving_back
--- @include damage
local given = 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local status, token = read(id, 'st', 'tok')
  if status == 'running' and token == ARGV[i + 1] then
    if intact(id) then give_back(id, ARGV[1] == '1') else end_damaged(id, {}) end
    given = given + 1
  end
end
publish()
return given
