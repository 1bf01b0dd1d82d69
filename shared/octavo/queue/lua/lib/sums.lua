-- Sums of the account of usage: tokens of prompts, those of them from the cache, tokens of answers, drafted tokens,
-- requests, failures, ms waited, ms computed.
local SUMS = '^' .. string.rep('(%d+) ', 7) .. '(%d+)$'

-- What cannot be read counts as nothing.
local function sums_in(text)
  local sums = {string.match(text or '', SUMS)}
  for i = 1, 8 do
    local sum = tonumber(sums[i] or 0)
    sums[i] = sum < 1e15 and sum or 0
  end
  return sums
end

local function sums_as_text(sums)
  return string.format('%d %d %d %d %d %d %d %d', unpack(sums))
end
