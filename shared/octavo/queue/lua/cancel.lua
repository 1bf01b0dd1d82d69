#!lua flags=allow-oom
-- A queued job ends at once; the owner of a running one finds the mark in its next reply. After a restart of the server a
-- queued job may be one that ended: it is marked, too, and ends in some seconds unless its end is told again.
-- KEYS    P
-- ARGV    id tenant('' for any)
-- Reply   status now, '' if there is no such job of the tenant
-- Events  the end of a queued job to subscribers and P:ev; a damaged one to P:dlq
--- @include cancelling
return cancel(ARGV[1], ARGV[2])
