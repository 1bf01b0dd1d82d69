#!lua flags=allow-oom
-- Make a model known, so that jobs for it are accepted, under its own name and under others. Two models have no name in
-- common for as long as both have live workers.
-- KEYS    P
-- ARGV    name card traits; of a worker that is to count as alive from now on, its id, lease_ms and info, and any number of
--         aliases
-- Reply   {} | {name, model that has it}: then nothing is changed
--- @include clock
--- @include aliases
--- @include alive
local name, worker, aliases = ARGV[1], ARGV[4], {unpack(ARGV, 7)}

-- Workers of earlier versions, too, say in their heartbeat which model they serve.
local function is_served(model)
  for _, id in ipairs(call('ZRANGE', key('workers'), 0, -1)) do
    local info = call('GET', key('W', id))
    local readable, message = pcall(cmsgpack.unpack, info or '')
    if readable and type(message) == 'table' and type(message[3]) == 'table' and message[3].model == model then
      return true
    end
  end
end

local other = announced(name)
if other and other ~= name then return {name, other} end
for _, alias in ipairs(aliases) do
  other = announced(alias)
  if other and other ~= name then return {alias, other} end
  if is_served(alias) then return {alias, alias} end
end

call('HSET', key('models'), name, ARGV[2])
call('HSET', key('traits'), name, ARGV[3])
if worker then note_alive(worker, tonumber(ARGV[5]), ARGV[6]) end
for _, alias in ipairs(aliases) do
  local _, workers = announced(alias)
  local words = {name, worker}
  for _, id in ipairs(workers or {}) do
    if id ~= worker then words[#words + 1] = id end
  end
  call('HSET', key('aliases'), alias, table.concat(words, ' '))
end
for _, alias in ipairs(call('HKEYS', key('aliases'))) do
  if not announced(alias) then call('HDEL', key('aliases'), alias) end
end
return {}
