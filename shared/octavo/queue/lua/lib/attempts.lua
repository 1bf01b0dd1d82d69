--- @include clock
-- The attempts at a job, the latest 16 of them, in one field of its hash: "<ms>,<tokens>,<worker>" when one began, behind
-- it ";<ms>,<tokens>,<why>" once it is over, a space between two. Whatever else is found there is kept and never read here.
local MOST_ATTEMPTS = 16

-- The field with one more. `tries` is what it holds, if anything.
local function attempt_begun(tries, tokens, worker)
  local begun = NOW .. ',' .. tokens .. ',' .. worker
  if not tries then return begun end
  local _, gaps = string.gsub(tries, ' ', '')
  while gaps >= MOST_ATTEMPTS - 1 do
    tries, gaps = string.match(tries, ' (.*)$'), gaps - 1
  end
  return tries .. ' ' .. begun
end

-- The field with the latest over.
local function attempt_over(tries, tokens, why)
  return (tries or '') .. ';' .. NOW .. ',' .. tokens .. ',' .. why
end
