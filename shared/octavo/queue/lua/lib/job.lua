--- @include keys
--- @include errors
-- Fields of a job's hash. Another kind of key has none: one damaged job must not fail a call on many.

local function read(id, ...)
  local values = redis.pcall('HMGET', key('j', id), ...)
  if is_error(values) then return end
  return unpack(values)
end

local function fields(id, ...)
  local values, out = redis.pcall('HMGET', key('j', id), ...), {}
  if is_error(values) then return out end
  local names = {...}
  for i = 1, #names do out[names[i]] = values[i] end
  return out
end
