--- @include keys
--- @include clock
-- Deliveries of events. The hash of each is the truth; the sets tell which may be tried next. A tenant, and an endpoint of
-- its, stands in line by the time from which something of it may be tried, or that of its last try if that was later: all
-- take turns.
local AT_ONCE = 4  -- tries of one endpoint
local MOST_WAITING, MOST_OF_TENANT = 10000, 50000  -- deliveries that wait
local served = 0

-- The ms from which something of an endpoint may be tried, nil if nothing waits.
local function next_try(endpoint)
  local held = call('ZRANGE', key('hl', endpoint), 0, 0, 'WITHSCORES')[2]
  local waiting = call('ZRANGE', key('hq', endpoint), 0, 0, 'WITHSCORES')[2]
  if waiting then call('ZADD', key('ho'), waiting, endpoint) else call('ZREM', key('ho'), endpoint) end
  if not waiting then return tonumber(held or nil) end
  if not held then return tonumber(waiting) end
  if call('ZCARD', key('hl', endpoint)) >= AT_ONCE then return tonumber(held) end
  return math.min(tonumber(held), tonumber(waiting))
end

-- Puts a member into its line. One that stands there and may go already keeps its place, unless it `was_served`.
local function stand(line, member, from, was_served)
  local before = tonumber(call('ZSCORE', line, member) or nil)
  if not from then
    call('ZREM', line, member)
  elseif was_served then
    served = math.min(served + 1, 999)  -- of one ms, too, the one that was served first is first again
    call('ZADD', line, math.max(from, NOW + served / 1000), member)
  elseif not (before and before < NOW + 1 and from < NOW + 1) then
    call('ZADD', line, math.max(from, NOW), member)
  end
end

local function take_turn(tenant, endpoint, was_served)
  local line = key('hr', tenant)
  stand(line, endpoint, next_try(endpoint), was_served)
  stand(key('ht'), tenant, tonumber(call('ZRANGE', line, 0, 0, 'WITHSCORES')[2] or nil), was_served)
end

local function count_waiting(by) call('HINCRBY', key('hc'), 'waiting', by) end

-- False for an endpoint that has as many waiting as it may: the endpoints of a tenant share what a tenant may have.
local function has_room(tenant, endpoint)
  local most = math.min(MOST_WAITING, math.floor(MOST_OF_TENANT / math.max(1, call('HLEN', key('hs', tenant)))))
  return call('ZCARD', key('hq', endpoint)) + call('ZCARD', key('hl', endpoint)) < most
end

local function forget_delivery(endpoint, event)
  if call('DEL', key('hd', endpoint, event)) == 1 then count_waiting(-1) end
  call('ZREM', key('hq', endpoint), event)
  call('ZREM', key('hl', endpoint), event)
end
