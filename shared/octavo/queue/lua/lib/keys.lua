-- All keys of a cell carry the hash tag of its prefix P:
--   P:j:<id>              HASH   st mdl tn cls lane n ep crashes cn solo sus tok ftok wid cx gw dl qdl qt dg ct sts ft as
--                                body att bytes est cost seed meta err use pg idem ret run eps ls era bt
--                                tries f1
--                                (status, model, tenant, class, where it waits, tokens stored, attempts, deaths of
--                                owners since it last got on, tokens stored at the latest, crashes that it was alone
--                                in, whether it runs as a suspect, claim token, token that finished
--                                it, worker, stop mark, subscribers, deadline, start-by limit and
--                                the time it leaves, digest of what its latest worker serves, times created/started/
--                                finished in ms, the alias by which its model was asked for, request, attachment, size of both, estimated prompt tokens,
--                                fair-queue cost, seed, metadata, error, tokens used, progress, idempotency key, retention, run of the
--                                server that accepted it, which claim wrote which tokens: both if it has several
--                                sequences; length of its lease in ms; there once it was erased; batch, place and index
--                                of its line; the latest attempts: lib/attempts.lua; the ms of its first tokens)
--   P:t:<id>  P:r:<id>    STREAM token log, STRING result
--   P:b:<class>:<tenant>:<model>          ZSET  backlog of a tenant by order of arrival
--   P:b:resume:<model>    ZSET  jobs that come back, by class and the ms at which they did: lib/lanes.lua
--   P:b:solo:<model>      ZSET  suspects, by the ms from which they may run (one death's have the same)
--   P:b:resume:=<digest>:<model>  P:b:solo:=<digest>:<model>  ZSET  those of them with tokens, for equal workers only
--   P:bound:<model>       ZSET   all that wait for equal workers
--   P:v:<class>:<model>   ZSET   tenants with a backlog by virtual time;  P:V:<class>:<model> the current one
--   P:lf:<class>:<tenant>:<model>  STRING  virtual time of a tenant that left (expires)
--   P:pass:<model>        HASH   how often each lower class was passed over
--   P:bell:<model>        LIST   at most one element: there is work
--   P:bell:<model>:=<digest>  LIST  likewise, for workers that serve the very same (expires)
--   P:bell:<model>:=<class>  P:bell:<model>:=<digest>:<class>  LIST  likewise, for those that have room for a class of
--                                             which another worker left work for want of room (expire)
--   P:blocked:<model>     STRING there while work that fitted no claim has just rung the bell (expires)
--   P:L  P:D  P:x         ZSET   job by lease expiry, by deadline, "<id> <tenant>" by end of retention (ms)
--   P:jobs                ZSET   all job ids, and ":<tenant>:<id>" for each (score 0: sorted by id, hence by time); of
--                                batches' jobs "~<id>" and ":<tenant>:~<id>"
--   P:q  P:q:<tenant>     HASH   queued, running, bytes (and queued:<model> in the first); zero is absent
--   P:i:<tenant>:<key>    STRING idempotency: "<id> <hash of the request>"
--   P:mended             STRING there for two seconds after damaged keys were mended (expires)
--   P:died:<wid>          STRING there while what a dead worker had is still coming back (expires)
--   P:c:<token>           STRING what a claim handed out, so that it can be repeated
--   P:W:<wid>  P:workers  STRING worker info with TTL, ZSET of workers by last heartbeat
--   P:in:<wid>  P:a:<id>  LIST   ids of questions about a worker's memory; the answer to one (both expire)
--   P:ask:<model>         LIST   questions to the tokenizer of a model (expires)
--   P:chat:<tenant>:<id>  STRING the latest job of a chat (expires)
--   P:pins:<model>        HASH   prefixes to keep resident, by "<tenant>:<name>"
--   P:models  P:reaper    HASH   model cards; the reaper's memory of the server it last saw
--   P:traits              HASH   what else is known of models, by name
--   P:aliases             HASH   other names of models: "<model> <worker that announces it>..." by alias
--   P:f:<id>              HASH   tn name purp bytes sha ct exp uses (tenant, name, purpose, size, SHA-256, times created and
--                                of expiry in ms, batches that read it)
--   P:files  P:fx         ZSET   all files as P:jobs has jobs; by the ms at which they expire
--   P:fq                  HASH   bytes of files by tenant
--   P:mark                STRING which storage the files are in
--   P:bt:<id>             HASH   tn ep in win ct dl st model total cur done failed u_in u_cached u_out u_reason meta oexp
--                                errs out err tok ftok wid, <state>_at (tenant, endpoint, input file, window as it was asked
--                                for, times created and due in ms, state, model, lines, places submitted, lines that
--                                succeeded and that failed, their tokens, metadata, seconds that outputs are kept, errors of
--                                the file, output and error file, owner's token, token that finished it, clerk)
--   P:bto:<id>  P:bte:<id>  ZSET  jobs of a batch that are open; that have ended and whose line is in no part: by place
--   P:btp:<id>            LIST   its parts that count
--   P:bts  P:btL          ZSET   batches by the ms from which they may be taken, and at which their owner's lease ends
--   P:batches             ZSET   all batches as P:jobs has jobs
--   P:tally               HASH   takeovers:<model>, refused:<model>: counts since the server was set up
--   P:ev  P:dlq  P:seq    STREAM outbox of ended jobs, STREAM dead letters, arrival counter
--   P:probe               STRING written to find out whether the server takes writes (expires)
--   P:tasks:<app>  P:tasks-sent:<app>  P:tasks-due:<app>  HASH, ZSET, ZSET  Celery tasks that wait for jobs
--   P:aside:j:<id>  P:aside:t:<id>  what stood in the place of a job's hash or stream and was none (expires)
--   P:n:<subscriber>      channel: live entries
-- Scripts are atomic but not rolled back: check first, write last.

local P, call = KEYS[1], redis.call

-- Concatenated, not joined from a table: every script does this many times.
local function key(kind, a, b, c)
  if a == nil then return P .. ':' .. kind end
  if b == nil then return P .. ':' .. kind .. ':' .. a end
  if c == nil then return P .. ':' .. kind .. ':' .. a .. ':' .. b end
  return P .. ':' .. kind .. ':' .. a .. ':' .. b .. ':' .. c
end
