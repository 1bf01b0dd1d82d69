#!lua flags=allow-oom
-- End a job: last entry, result, counters, outbox event, retention, all at once. Only its owner may; repeating it is
-- harmless. All of its tokens must be stored, else its owner has to append them again.
-- KEYS    P
-- ARGV    id token status tokens terminal result('' if the stream has to do) error('' for none) usage
--         is_cut(1: a limit of tokens has ended it)
-- Reply   {ok | rewind | fenced, tokens stored}
-- Events  the end to subscribers and P:ev, of a damaged job to P:dlq, too
--- @include ending
--- @include intact
local id, token, status, tokens, ending, result, problem, usage, is_cut = unpack(ARGV)
local job = job_to_end(id)
local stored = tonumber(job.n) or 0
if job.st ~= 'running' or job.tok ~= token then
  --- @include tally
  tally_refused(id, token)
end
if job.st ~= 'running' then return {job.ftok == token and 'ok' or 'fenced', stored} end
if job.tok ~= token then return {'fenced', stored} end
if not can_end(job) then
  --- @include damage
  end_damaged(id, {})
  publish()
  return {'fenced', stored}
end
if stored ~= tonumber(tokens) then return {'rewind', stored} end
local facts = problem == '' and {'ftok', token, 'use', usage} or {'ftok', token, 'use', usage, 'err', problem}
job.is_cut = is_cut == '1'
conclude(id, job, status, ending, result ~= '' and result, facts, false, usage_in(usage))
publish()
return {'ok', stored}
