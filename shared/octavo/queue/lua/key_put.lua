#!lua
-- Make an API key known, and its tenant a project. Repeating it changes nothing.
-- KEYS    P
-- ARGV    msgpack of a map: id tenant name digest scopes most (keys that a tenant may have); where there are account,
--         models (JSON), expires_ms from now
-- Reply   ok | archived (its project) | full | no_account
-- Events  the id to P:n:keys: gateways may know that there is no such key
--- @include key_changes
local new = cmsgpack.unpack(ARGV[1])
local hash, own = key('k', new.id), ':' .. new.tenant .. ':'
if call('EXISTS', hash) == 1 then return 'ok' end
if is_archived(new.tenant) then return 'archived' end
if new.account and call('HGET', key('ka', new.account), 'tn') ~= new.tenant then return 'no_account' end
if call('ZLEXCOUNT', key('ks'), '[' .. own, '(' .. own .. '~') >= new.most then return 'full' end
local fields = {'tn', new.tenant, 'name', new.name, 'dg', new.digest, 'sc', new.scopes, 'ct', NOW}
local function note(field, value)
  if value then
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
end
note('acct', new.account)
note('md', new.models)
note('exp', new.expires_ms and NOW + new.expires_ms)
call('HSET', hash, unpack(fields))
list_key(new.id, new.tenant, new.account)
note_project(new.tenant, new.tenant)
tell_gateways(new.id)
return 'ok'
