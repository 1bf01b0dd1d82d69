--- @include keys
--- @include job
--- @include lanes
--- @include rooms
--- @include running
-- Which job is next: by class, inside a class those that come back first, then the tenant that got least.
local PATIENCE = {normal = 8, batch = 32}  -- a class passed over so often goes next
local passed = nil
local turns, coming = {}, {}  -- what comes first of a class and in a lane, until something of it is taken

-- The tenant whose turn it is in a class, and its virtual time. Beyond the room it is the first that may have a guest.
local function turn_of(class)
  local room, turn = rooms[class], turns[class]
  if turn then return turn end
  if held[class] then
    turns[class] = {}
    return turns[class]
  end
  if room[1] > 0 then
    turn = call('ZRANGE', key('v', class, model), 0, 0, 'WITHSCORES')
  else
    turn = {}
    for _, tenant in ipairs(call('ZRANGE', key('v', class, model), 0, 255)) do
      if not room[6][tenant] then
        turn = {tenant}
        break
      end
    end
  end
  turns[class] = turn
  return turn
end

-- The first job of a lane, {id, class}, its class being the highest there; {} if there is none.
local function first_in(lane)
  local id, score = unpack(call('ZRANGE', key('b', lane, model), 0, 0, 'WITHSCORES'))
  if not id then return {} end
  local class = class_at(tonumber(score)) or read(id, 'cls')
  return {id, RANK[class] and class or 'high'}
end

-- The lane with a job of this class that comes back, and the job.
local function coming_back(class)
  for i = 1, #lanes do
    local lane = lanes[i]
    local first = coming[lane] or first_in(lane)
    coming[lane] = first
    if first[2] == class then return lane, first[1] end
  end
end

-- The class to take from. `heads` are the next tenant of each that waits and has room, {} if only jobs that come back
-- do; `risen` is the highest of them if another goes next for its age.
local function next_class()
  local heads, highest = {}, nil
  for i = 1, 3 do
    local class = CLASSES[i]
    local room = rooms[class]
    if room[1] > 0 or room[4] > 0 then
      local turn = turn_of(class)
      if turn[1] or (lanes[1] and coming_back(class)) then
        heads[class] = turn
        highest = highest or class
      end
    end
  end
  if not highest then return nil end
  if not passed then
    local counts = call('HMGET', key('pass', model), 'normal', 'batch')
    passed = {normal = tonumber(counts[1] or 0), batch = tonumber(counts[2] or 0)}
  end
  for i = #CLASSES, RANK[highest] + 1, -1 do
    local class = CLASSES[i]
    if heads[class] and rooms[class][1] > 0 and passed[class] >= PATIENCE[class] then return class, heads, highest end
  end
  return highest, heads
end

local function note_passed_over(chosen, heads)
  local counts, lower, noted = key('pass', model), false, false
  for i = 1, 3 do
    local class = CLASSES[i]
    if class == chosen then
      if passed[class] and passed[class] > 0 then call('HDEL', counts, class) end
      passed[class] = passed[class] and 0
      lower = true
    elseif lower and heads[class] then
      passed[class] = call('HINCRBY', counts, class, 1)
    end
    noted = noted or (passed[class] or 0) > 0
  end
  if noted and (passed.normal % 8 == 1 or passed.batch % 8 == 1) then call('EXPIRE', counts, 3600) end
end

local function next_job()
  while true do
    local class, heads, risen = next_class()
    if not class then return nil end
    local lane, returned = coming_back(class)
    if returned then return returned, lane, class, heads, risen end
    local tenant = heads[class][1]
    if is_at_cap(tenant, model) then
      --- @include parking
      park(class, tenant, model)
    else
      local id = call('ZRANGE', key('b', class, tenant, model), 0, 0)[1]
      if id then return id, class, class, heads, risen end
      call('ZREM', key('v', class, model), tenant)  -- it has no backlog
    end
    turns[class] = nil
  end
end
