--- @include keys
-- Which claim wrote which tokens of several sequences, in their order: "<epoch>:<offset behind its last token> ...". What
-- workers of before wrote in between counts as that of the next claim: it is there wherever that is. The epoch of a claim
-- is the beginning of its token.

local function epoch_of(token) return string.sub(token, 1, 8) end

-- A claim has written the tokens from `start` to `stored`. What others wrote behind `start` is not there any more.
local function note_epoch(hash, epoch, start, stored)
  local known = call('HGET', hash, 'eps') or ''
  local before, last, upto = string.match(known, '^(.-)(%S+):(%d+)$')
  if last == epoch then
    call('HSET', hash, 'eps', before .. epoch .. ':' .. math.max(tonumber(upto), stored))
    return
  end
  local kept, at = {}, 0
  for name, behind in string.gmatch(known, '(%S+):(%d+)') do
    if at < start then
      at = math.min(tonumber(behind), start)
      kept[#kept + 1] = name .. ':' .. at
    end
  end
  kept[#kept + 1] = epoch .. ':' .. stored
  call('HSET', hash, 'eps', table.concat(kept, ' '))
end
