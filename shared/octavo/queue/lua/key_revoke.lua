#!lua flags=allow-oom
-- End an API key for good. It is known for a while as one that was revoked.
-- KEYS    P
-- ARGV    id tenant('' for any) known_s
-- Reply   1 | 0 if there is no such key of the tenant, or it was revoked before
-- Events  the id to P:n:keys
--- @include key_changes
return revoke(ARGV[1], ARGV[2], ARGV[3])
