-- Sums of the account of usage: tokens of prompts, those of them from the cache, tokens of answers, drafted tokens,
-- requests, failures, ms waited, ms computed. Eight doubles, as a whole number of 15 digits is exact in one.
local SUMS = '<dddddddd'

-- What cannot be read counts as nothing.
local function sums_in(value)
  if not value or #value ~= 64 then return 0, 0, 0, 0, 0, 0, 0, 0 end
  local a, b, c, d, e, f, g, h = struct.unpack(SUMS, value)
  local all = a + b + c + d + e + f + g + h
  if not (all >= 0 and all < 8e15) then return 0, 0, 0, 0, 0, 0, 0, 0 end
  return a, b, c, d, e, f, g, h
end
