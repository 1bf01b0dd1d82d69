--- @include keys
--- @include clock
-- Where a job waits that comes back: 'resume' or 'solo', and of one with tokens 'resume:=<digest>' or 'solo:=<digest>',
-- as only a worker that serves the very same may go on with them. No model's name begins with '='.

local function lane_of(kind, digest, tokens)
  if digest and digest ~= '' and tonumber(tokens) > 0 then return kind .. ':=' .. digest end
  return kind
end

-- All that a worker may take from; those with tokens, which are being read, go first.
local function lanes_of(kind, digest)
  if digest == '' then return {kind} end
  return {kind .. ':=' .. digest, kind}
end

-- A lane 'resume' is in order of classes, then of time: a score is the class's share of the time in ms. Versions before
-- this one put the whole time there, and take what comes first.
local SHARE = {high = 0.25, normal = 0.5, batch = 0.75}

-- Of a score; nil for one of an earlier version.
local function class_at(score)
  local share = score / NOW
  return share < 0.375 and 'high' or share < 0.625 and 'normal' or share < 0.875 and 'batch' or nil
end
