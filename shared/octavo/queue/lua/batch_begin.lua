#!lua flags=allow-oom
-- The structure of a batch's file is right: its lines may run.
-- KEYS    P
-- ARGV    batch token lines model
-- Reply   its state, '' if it is another owner's
--- @include batch
local id, token, total, model = unpack(ARGV)
local state = owned_state(id, token)
if state == 'validating' then
  call('HSET', key('bt', id), 'total', total, 'model', model, 'cur', 0)
  enter_state(id, 'in_progress')
  return 'in_progress'
end
return state or ''
