--- @include clock
-- A worker lives for as long as what it says of itself is there.
local function note_alive(worker, lease_ms, info)
  call('SET', key('W', worker), info, 'PX', math.max(3 * lease_ms, 5000))
  call('ZADD', key('workers'), NOW, worker)
end
