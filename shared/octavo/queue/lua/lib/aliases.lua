--- @include keys
-- Other names of models. Each holds for as long as a worker lives that announces it: P:aliases has
-- '<model> <worker>...' under the alias.

-- The model that an alias stands for now, and the live workers that say so.
local function announced(alias)
  local model, workers = nil, {}
  for word in string.gmatch(call('HGET', key('aliases'), alias) or '', '%S+') do
    if not model then
      model = word
    elseif call('EXISTS', key('W', word)) == 1 then
      workers[#workers + 1] = word
    end
  end
  if workers[1] then return model, workers end
end
