--- @include keys
--- @include clock
-- Files that are kept. Their bytes lie in the storage under `files/<id>`.

-- `file`: id tenant name purpose bytes sha, expires_s where it expires. One that is known stays as it is.
local function note_file(file)
  local hash = key('f', file.id)
  if call('EXISTS', hash) == 1 then return end
  call('HSET', hash, 'tn', file.tenant, 'name', file.name, 'purp', file.purpose, 'bytes', file.bytes, 'sha', file.sha,
    'ct', NOW)
  if file.expires_s then
    local at = NOW + file.expires_s * 1000
    call('HSET', hash, 'exp', at)
    call('ZADD', key('fx'), at, file.id)
  end
  call('ZADD', key('files'), 0, file.id, 0, ':' .. file.tenant .. ':' .. file.id)
  call('HINCRBY', key('fq'), file.tenant, file.bytes)
end

-- A batch that has not ended reads its input.
local function use_file(id, by)
  if call('EXISTS', key('f', id)) == 0 then return end
  if call('HINCRBY', key('f', id), 'uses', by) <= 0 then call('HDEL', key('f', id), 'uses') end
end
