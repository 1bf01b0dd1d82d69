#!lua flags=allow-oom
-- A worker says again how a job ended, to a server that has acknowledged it and may have forgotten it since. Readers have
-- seen that end, so it stands, whichever worker owns the job by now.
-- KEYS    P
-- ARGV    as those of finish
-- Reply   0 if there is no such job (yet: its submitter makes it again), else 1
-- Events  the end to subscribers and P:ev
--- @include ending
--- @include intact
local id, token, status, tokens, ending, result, problem, usage, is_cut = unpack(ARGV)
local job = job_to_end(id)
if not job.st then return 0 end
if ENDED[job.st] or not can_end(job) or result == '' then return 1 end
local is_whole = job.n == tokens
job.n = tokens
local facts = {'ftok', token, 'use', usage, 'n', tokens}
if problem ~= '' then
  facts[#facts + 1] = 'err'
  facts[#facts + 1] = problem
end
job.is_cut = is_cut == '1'
conclude(id, job, status, ending, result, facts, false, usage_in(usage))
if not is_whole then call('DEL', key('t', id)) end  -- the result has what it lacks
publish()
return 1
