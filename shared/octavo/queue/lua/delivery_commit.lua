#!lua flags=allow-oom
-- A try of a delivery is over, if it is still its owner's.
-- KEYS    P
-- ARGV    endpoint event token outcome pause_ms answer
--         outcome: ok (delivered), again (in pause_ms), failed (to the end), gone (and the endpoint wants no more), back
--         (there was no try); answer: an HTTP status, or a word for why there is none
-- Reply   ok | fenced
--- @include ended_deliveries
local endpoint, event, token, outcome, pause_ms, answer = unpack(ARGV)
local delivery = key('hd', endpoint, event)
local owner, tenant, due = unpack(call('HMGET', delivery, 'tok', 'tn', 'due'))
if owner ~= token then return 'fenced' end
if outcome == 'ok' then
  forget_delivery(endpoint, event)
  note_going(endpoint)
else
  if outcome ~= 'back' then
    call('HINCRBY', delivery, 'n', 1)
    call('HSET', delivery, 'ans', answer)
    due = NOW + tonumber(pause_ms)
  end
  if outcome == 'failed' or outcome == 'gone' then
    give_up(endpoint, event)
    trim_failed(endpoint)
  else
    call('ZREM', key('hl', endpoint), event)
    call('HDEL', delivery, 'tok')
    call('HSET', delivery, 'due', due or NOW)
    call('ZADD', key('hq', endpoint), due or NOW, event)
    if outcome == 'again' then note_failing(endpoint) end
  end
  if outcome == 'gone' and call('EXISTS', key('he', endpoint)) == 1 then
    call('HSET', key('he', endpoint), 'off', NOW)
    call('HDEL', key('hs', tenant), endpoint)
  end
end
take_turn(tenant, endpoint)
return 'ok'
