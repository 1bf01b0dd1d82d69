--- @include keys
-- The room of each class in a claim: {jobs, tokens of prompts, whether the first job may have any size, guests, tokens for
-- these, tenants without any}. A guest is a job beyond the room, for which another tenant's gives way.
-- Where nothing gives way, it is one room of all classes.
local CLASSES, RANK = {'high', 'normal', 'batch'}, {high = 1, normal = 2, batch = 3}
local several, misfits = ARGV[9] ~= nil, {}
local highest = {max_jobs, budget, idle, 0}
local rooms = {high = highest, normal = highest, batch = highest}

if several then
  local whole = tonumber(ARGV[9])
  highest[3] = whole > 0
  rooms.normal = {tonumber(ARGV[10]), tonumber(ARGV[11]), whole > 1, 0}
  rooms.batch = {tonumber(ARGV[12]), tonumber(ARGV[13]), whole > 2, 0}
  for i = 14, #ARGV, 4 do
    local room, sated = rooms[ARGV[i]], {}
    for tenant in string.gmatch(ARGV[i + 3], '%S+') do sated[tenant] = true end
    room[4], room[5], room[6] = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), sated
  end
end

-- Whether there is room for a job, or for it as a guest, which it then has. It counts where it rose to, and in lower
-- classes: they give way.
local function find_room(job, risen)
  local room, size = rooms[job.cls], tonumber(job.est)
  if room[1] > 0 and (size <= room[2] or room[3]) then
    local rank = RANK[risen or job.cls]
    for i = rank, several and #CLASSES or rank do
      room = rooms[CLASSES[i]]
      room[1], room[2], room[3] = room[1] - 1, room[2] - size, false
    end
    return 'room'
  end
  if room[4] > 0 and size <= room[5] and not room[6][job.tn] then
    room[4], room[5], room[6][job.tn] = room[4] - 1, room[5] - size, true
    return 'guest'
  end
end

-- A job that does not fit holds up its class and those below; guests of its class may still fit. One that goes next for
-- its age goes before higher classes: what is left is kept for it, and they get what makes room for them.
local function close(class, risen)
  local left, rank = rooms[class], RANK[class]
  for i = 1, risen and several and rank - 1 or 0 do
    local room = rooms[CLASSES[i]]
    room[1], room[2] = room[1] - left[1], room[2] - math.max(0, left[2])
  end
  for i = rank, #CLASSES do
    local room = rooms[CLASSES[i]]
    if i > rank or room[1] <= 0 then room[4] = 0 end
    room[1] = 0
    misfits[CLASSES[i]] = true
  end
end
