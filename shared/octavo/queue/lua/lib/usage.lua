-- Tokens that an owner tells at a job's end: the frame `use` of octavo.queue.wire.
local function usage_in(frame)
  local known, told = pcall(cmsgpack.unpack, frame)
  local counts = {}
  for i = 1, 7 do
    local count = known and type(told) == 'table' and tonumber(told[i + 2]) or 0
    counts[i] = count >= 0 and count < 1e12 and math.floor(count) or 0
  end
  return counts
end
