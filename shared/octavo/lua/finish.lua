#!lua flags=allow-oom
-- End a job: last entry, result, counters, outbox event, retention, all at once. Only its owner may; repeating it is
-- harmless. All of its tokens must be stored, else its owner has to append them again.
-- ARGV: id token status tokens terminal result('' if the stream has to do) error('' for none) usage -> {state, offset}
local id, token, status, tokens, ending, result, problem, usage = unpack(ARGV)
local job = fields(id, 'st', 'tok', 'ftok', 'n')
local stored = tonumber(job.n or 0)
if job.st ~= 'running' then return {job.ftok == token and 'ok' or 'fenced', stored} end
if job.tok ~= token then return {'fenced', stored} end
if stored ~= tonumber(tokens) then return {'rewind', stored} end
conclude(id, status, ending, result ~= '' and result, token, problem ~= '' and problem)
redis.call('HSET', key('j', id), 'use', usage)
publish()
return {'ok', stored}
