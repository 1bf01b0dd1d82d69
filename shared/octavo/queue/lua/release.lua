#!lua flags=allow-oom
-- An owner gives jobs back: it stops or has no use for them (back), or its engine, which ran all of them, died: of what
-- it computed (crashed), or by a hand from outside (killed). Or the server takes nothing of them (refused), also after it
-- was mended: that is damage, and no crash.
-- KEYS    P
-- ARGV    back|crashed|killed|refused (id token)...
-- Reply   number of jobs given back
-- Events  ends of cancelled, late, given-up and damaged jobs to subscribers and P:ev, the last two kinds to P:dlq
--- @include intact
--- @include giving_back
--- @include damage
local why, given, died = ARGV[1], 0, {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local status, token = read(id, 'st', 'tok')
  if status == 'running' and token == ARGV[i + 1] then
    given = given + 1
    if why == 'refused' or not intact(id) then
      end_damaged(id, {})
    elseif why == 'back' then
      give_back(id)
    else
      died[#died + 1] = id
    end
  end
end
owner_died(died, why == 'crashed', false, why)
publish()
return given
