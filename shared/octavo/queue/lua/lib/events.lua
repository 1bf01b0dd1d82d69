--- @include ended_deliveries
-- Events: each has one id, made of what it tells of, so that noting it again makes no second one.

-- Every endpoint of the tenant that names the type gets a delivery. Where too many wait, it has failed to the end at
-- once. `trace` is the context of the trace of what it tells of, if that has one.
local function note_event(tenant, kind, of, trace)
  local wanted = call('HGETALL', key('hs', tenant))
  for i = 1, #wanted, 2 do
    local endpoint, event = wanted[i], 'evt_' .. of
    local delivery = key('hd', endpoint, event)
    if string.find(' ' .. wanted[i + 1] .. ' ', ' ' .. kind .. ' ', 1, true) and call('EXISTS', delivery) == 0 then
      call('HSET', delivery, 'tn', tenant, 'typ', kind, 'of', of, 'at', NOW, 'st', 'waiting', 'n', 0)
      if trace then call('HSET', delivery, 'tp', trace) end
      count_waiting(1)
      if has_room(tenant, endpoint) then
        call('ZADD', key('hq', endpoint), NOW, event)
        take_turn(tenant, endpoint)
      else
        call('HSET', delivery, 'ans', 'too_many_waiting')
        give_up(endpoint, event)
        trim_failed(endpoint)
      end
    end
  end
end

-- `asked`: which kind of event the end of a job is. A response that its limit of tokens has cut is incomplete.
local function note_end(id, asked, tenant, status, is_cut, trace)
  if asked == 'response' then
    if status == 'expired' then status = 'failed' elseif status == 'completed' and is_cut then status = 'incomplete' end
    note_event(tenant, 'response.' .. status, 'resp_' .. id, trace)
  elseif asked == 'job' then
    note_event(tenant, 'job.' .. status, id, trace)
  end
end
