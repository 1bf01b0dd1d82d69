#!lua flags=allow-oom
-- A part that is stored counts from now on: its lines leave the batch, and their jobs are forgotten in a minute. A part may
-- also hold the lines from the cursor up to a place, which will never be submitted.
-- KEYS    P
-- ARGV    msgpack of a map: id token part (its record) number (of parts before it) members (of P:bte) completed failed
--         usage (input, cached, output, reasoning tokens); where lines are left out from and to, and of the jobs in
--         between, which an owner has submitted without moving the cursor: kept (number of those whose line is not in the
--         part and counts as submitted from now on) and dropped (members whose line is in the part)
-- Reply   {ok | fenced | moved | missing, parts that count}
--- @include batch
--- @include batch_jobs
local asked = cmsgpack.unpack(ARGV[1])
local id, ended, parts = asked.id, key('bte', asked.id), key('btp', asked.id)
local known = call('LLEN', parts)
if not owned_state(id, asked.token) then return {'fenced', known} end
if known == asked.number + 1 and call('LINDEX', parts, -1) == asked.part then return {'ok', known} end
local cursor = number_of(id, 'cur')
if known ~= asked.number or (asked.to and cursor ~= asked.from) then return {'moved', known} end
if asked.to then
  local jobs = 0
  for _, kind in ipairs({'bto', 'bte'}) do jobs = jobs + call('ZCOUNT', key(kind, id), asked.from, '(' .. asked.to) end
  if jobs ~= asked.kept + #asked.dropped then return {'moved', known} end
end
for _, member in ipairs(asked.members) do
  local place = tonumber(string.match(member, '^%d+'))
  if not call('ZSCORE', ended, member) or not place or place >= cursor then return {'missing', known} end
end

call('RPUSH', parts, asked.part)
for _, member in ipairs(asked.members) do
  call('ZREM', ended, member)
  let_go(string.match(member, '%S*$'))
end
for _, member in ipairs(asked.dropped or {}) do
  call('ZREM', key('bto', id), member)
  call('ZREM', ended, member)
  leave_batch(string.match(member, '%S*$'))
end
local hash = key('bt', id)
if asked.to then call('HSET', hash, 'cur', asked.to) end
local sums = {done = asked.completed, failed = asked.failed, u_in = asked.usage[1], u_cached = asked.usage[2],
  u_out = asked.usage[3], u_reason = asked.usage[4]}
for field, by in pairs(sums) do
  if by > 0 then call('HINCRBY', hash, field, by) end
end
return {'ok', known + 1}
