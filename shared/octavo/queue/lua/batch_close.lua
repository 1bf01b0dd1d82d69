#!lua flags=allow-oom
-- Every line is in a part: what is left is to put the parts together.
-- KEYS    P
-- ARGV    batch token
-- Reply   its state, '' if it is another owner's, 'open' while lines are left
--- @include batch
local id, token = ARGV[1], ARGV[2]
local state = owned_state(id, token)
if state ~= 'in_progress' then return state or '' end
if has_lines_open(id) or number_of(id, 'cur') < number_of(id, 'total') then return 'open' end
enter_state(id, 'finalizing')
return 'finalizing'
