--- @include keys
local function bury(id, worker, attempts, reason)
  call('XADD', key('dlq'), 'MAXLEN', '~', 10000, '*', 'id', id, 'wid', worker, 'ep', attempts, 'why', reason)
end
