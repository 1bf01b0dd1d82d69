--- @include keys
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
