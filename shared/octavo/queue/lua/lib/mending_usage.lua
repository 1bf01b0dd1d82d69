--- @include clock
--- @include aside
-- What is to be folded of the account of usage can be told from its keys.
local MS_OF, FOLDED_AS = {use = 3600000, useh = 86400000}, {use = 'm', useh = 'h'}
local KEPT_AFTER = {use = 7200000, useh = 8 * 86400000}

local function mend_usage(accounts)
  for _, account in ipairs(accounts) do
    local kind, number, tenant = account[1], string.match(account[2], '^(%d%d?%d?%d?%d?%d?%d?):(.+)$')
    if number then
      local due = (number + 1) * MS_OF[kind] + KEPT_AFTER[kind]
      call('ZADD', key('fold'), due, FOLDED_AS[kind] .. ' ' .. number .. ' ' .. tenant)
      call('ZADD', key('usage'), 'GT', math.floor(number * MS_OF[kind] / 3600000), tenant)
    else
      set_aside(key(kind, account[2]))
    end
  end
end
