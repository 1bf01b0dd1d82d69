#!lua flags=allow-oom
-- Pause lanes of a model, or let them go on. Claims take nothing of a paused lane but what comes back to it. Repeating it
-- changes nothing.
-- KEYS    P
-- ARGV    model (or another name of it), classes (with blanks between), paused (1|0)
-- Reply   {model, number of lanes that changed}, {''} if the model is not known
--- @include clock
--- @include aliases
--- @include bell
--- @include pauses
local model, wants_pause, changed = announced(ARGV[1]) or ARGV[1], ARGV[3] == '1', 0
if call('HEXISTS', key('models'), model) == 0 then return {''} end
for class in string.gmatch(ARGV[2], '%l+') do
  local over, since = pauses_of(class, model)
  if wants_pause ~= (since > 0) then
    changed = changed + 1
    call('HSET', key('pauses'), class .. ' ' .. model, over .. ' ' .. (wants_pause and NOW or 0))
  end
end
if changed > 0 and not wants_pause then ring(model) end
return {model, changed}
