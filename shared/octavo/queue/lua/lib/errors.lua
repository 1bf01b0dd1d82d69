-- Whether a command failed on what it found. What the user may not do is no damage: that ends the script.
local function is_error(reply)
  local problem = type(reply) == 'table' and reply.err
  if problem and (string.find(problem, 'The user executing') or string.find(problem, 'ACL failure')) then error(reply) end
  return problem
end
