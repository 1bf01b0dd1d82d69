-- A Terminal as octavo.queue.wire writes it.
local function terminal(status, tokens, code, message)
  local problem = cjson.null
  if code then problem = {code, message} end
  return cmsgpack.pack({1, 'e', status, {0, tonumber(tokens), 0}, problem})
end
