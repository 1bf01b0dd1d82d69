"""The names of everything octavo keeps in Redis.

All keys of a cell share one hash tag, so that every transition is one script in one slot. The scripts build the
same names from the prefix. This module and `lua/lib/keys.lua` are the only two places that list them.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)


class JobHash(StrEnum):
    """Fields of a job's hash. `lua/lib/keys.lua` lists all of them; these are read in Python, too."""

    STATUS = "st"
    MODEL = "mdl"
    TENANT = "tn"
    PRIORITY = "cls"
    TOKENS = "n"
    COST = "cost"
    ATTEMPTS = "ep"
    CRASHES = "crashes"
    WORKER = "wid"
    CREATED_MS = "ct"
    STARTED_MS = "sts"
    FINISHED_MS = "ft"
    ASKED = "as"
    REQUEST = "body"
    SEED = "seed"
    IDEMPOTENCY_KEY = "idem"
    RETENTION = "ret"
    ERASED = "era"
    METADATA = "meta"
    ATTACHMENT = "att"
    ERROR = "err"
    USAGE = "use"
    PROGRESS = "pg"
    RUN = "run"
    EPOCHS = "eps"
    TRIES = "tries"
    FIRST_TOKEN_MS = "f1"
    API_KEY = "key"
    NOTIFY = "nf"
    TRACE = "tp"
    NOT_BEFORE_MS = "nb"


@dataclass(frozen=True)
class Keys:
    """Key names of one cell (`{c00}` on a standalone server)."""

    cell: int = 0

    @property
    def prefix(self) -> str:
        return f"{{c{self.cell:02d}}}"

    def job(self, job_id: str) -> str:
        """HASH: state of one job."""
        return f"{self.prefix}:j:{job_id}"

    def stream(self, job_id: str) -> str:
        """STREAM: its token log; entry id = tokens so far, terminal entry `<n>-1`."""
        return f"{self.prefix}:t:{job_id}"

    def result(self, job_id: str) -> str:
        """STRING: its compact result, which outlives the stream."""
        return f"{self.prefix}:r:{job_id}"

    def bell(self, model: str, *, priority: str = "") -> str:
        """LIST of at most one element: present while the model has queued jobs. Workers block on it. With a `priority`:
        another worker has left jobs of this class for want of room."""
        return f"{self.prefix}:bell:{model}" + (f":={priority}" if priority else "")

    def bell_of_equals(self, model: str, digest: str, *, priority: str = "") -> str:
        """LIST, likewise: a job with tokens waits for a worker of this digest."""
        return f"{self.bell(model)}:={digest}" + (f":{priority}" if priority else "")

    def backlog(self, lane: str, of: str) -> str:
        """ZSET: jobs that wait in a lane. `of` is a model where the lane is of those that come back (resume, solo),
        `<tenant>:<model>` where it is a class."""
        return f"{self.prefix}:b:{lane}:{of}"

    def bound(self, model: str) -> str:
        """ZSET: jobs of a model that wait for workers that serve the very same."""
        return f"{self.prefix}:bound:{model}"

    def turns(self, priority: str, model: str) -> str:
        """ZSET: tenants with a backlog in a class of a model, by virtual time."""
        return f"{self.prefix}:v:{priority}:{model}"

    def worker(self, worker_id: str) -> str:
        """STRING with TTL: a worker's latest `WorkerInfo`."""
        return f"{self.prefix}:W:{worker_id}"

    def inbox(self, worker_id: str) -> str:
        """LIST: ids under which callers await an answer from a worker about its memory."""
        return f"{self.prefix}:in:{worker_id}"

    def questions(self, model: str) -> str:
        """LIST, for seconds: questions to the tokenizer of a model, which any worker of it answers."""
        return f"{self.prefix}:ask:{model}"

    def answer(self, answer_id: str) -> str:
        """LIST of one, for seconds: a worker's answer."""
        return f"{self.prefix}:a:{answer_id}"

    def pins(self, model: str) -> str:
        """HASH: `<tenant>:<name>` to the `PrefixPin` that every worker of a model is to keep resident."""
        return f"{self.prefix}:pins:{model}"

    @property
    def workers(self) -> str:
        """ZSET: worker id by last heartbeat, ms."""
        return f"{self.prefix}:workers"

    @property
    def models(self) -> str:
        """HASH: model name to `ModelCard`."""
        return f"{self.prefix}:models"

    @property
    def traits(self) -> str:
        """HASH: model name to what else its card says."""
        return f"{self.prefix}:traits"

    @property
    def aliases(self) -> str:
        """HASH: another name of a model to "<model> <worker that announces it>..."."""
        return f"{self.prefix}:aliases"

    @property
    def jobs(self) -> str:
        """ZSET: all job ids, and `:<tenant>:<id>` for each, score 0: sorted by id, hence by time."""
        return f"{self.prefix}:jobs"

    @property
    def leases(self) -> str:
        """ZSET: jobs that run, by the end of their lease, ms."""
        return f"{self.prefix}:L"

    @property
    def counters(self) -> str:
        """HASH: queued, running, bytes and `queued:<model>`; what is absent is zero."""
        return f"{self.prefix}:q"

    @property
    def outbox(self) -> str:
        """STREAM: one event a finished job."""
        return f"{self.prefix}:ev"

    @property
    def dead_letters(self) -> str:
        """STREAM: one entry a job that was given up."""
        return f"{self.prefix}:dlq"

    @property
    def tally(self) -> str:
        """HASH: what was counted since the server was set up, `takeovers:<model>` and `refused:<model>`."""
        return f"{self.prefix}:tally"

    def parked(self, model: str) -> str:
        """ZSET: "<class> <tenant>" of each that runs as many jobs as it may, by the ms of the last look at it."""
        return f"{self.prefix}:parked:{model}"

    def idempotency(self, tenant: str, key: str) -> str:
        """STRING: "<job id> <hash of the request>"."""
        return f"{self.prefix}:i:{tenant}:{key}"

    def chat(self, tenant: str, chat_id: str) -> str:
        """STRING: the latest job of a chat."""
        return f"{self.prefix}:chat:{tenant}:{chat_id}"

    def tasks(self, app: str) -> str:
        """HASH: the messages of a Celery application's tasks whose jobs have not ended."""
        return f"{self.prefix}:tasks:{app}"

    def tasks_sent(self, app: str) -> str:
        """ZSET: these tasks by the time, in s, at which their message was sent or their job looked at."""
        return f"{self.prefix}:tasks-sent:{app}"

    def tasks_due(self, app: str) -> str:
        """ZSET: those that expire, by the time at which they do, in s."""
        return f"{self.prefix}:tasks-due:{app}"

    @property
    def pauses(self) -> str:
        """HASH: lanes that are or were paused, by class and model."""
        return f"{self.prefix}:pauses"

    @property
    def later(self) -> str:
        """ZSET: jobs that start not before a time, by that in ms."""
        return f"{self.prefix}:later"

    def limits(self, tenant: str) -> str:
        """HASH: limits of a tenant by scope."""
        return f"{self.prefix}:lim:{tenant}"

    def buckets(self, tenant: str) -> str:
        """HASH: what is left of these limits."""
        return f"{self.prefix}:bk:{tenant}"

    @property
    def usage(self) -> str:
        """ZSET: tenants by the last hour in which they used anything."""
        return f"{self.prefix}:usage"

    @property
    def limited(self) -> str:
        """ZSET: tenants that ever had limits."""
        return f"{self.prefix}:limited"

    def page(self, digest: str) -> str:
        """STRING with TTL: the tenant of a page that was loaded, by the digest of its token."""
        return f"{self.prefix}:page:{digest}"

    def channel(self, subscriber_id: str) -> str:
        """PUBSUB: live events for one subscriber (a gateway process or a client object)."""
        return f"{self.prefix}:n:{subscriber_id}"

    def new_job_id(self) -> str:
        """`g<cell>_<ULID>`: sortable by time, 80 random bits, names its own cell."""
        return f"g{self.cell:02d}_{new_ulid()}"


def new_ulid() -> str:
    """26 letters and digits: sortable by time, 80 random bits."""
    value = (int(time.time() * 1000) << 80) | secrets.randbits(80)
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def milliseconds_of(ulid: str) -> int:
    """The time at which it was made, in ms since the epoch."""
    milliseconds = 0
    for letter in ulid[:10]:  # its first 50 bits; the others are random
        milliseconds = milliseconds << 5 | _CROCKFORD.index(letter)
    return milliseconds


def cell_of(job_id: str) -> Keys:
    """The cell that holds a job. Raises ValueError for anything that is not a job id."""
    if len(job_id) != 30 or job_id[0] != "g" or job_id[3] != "_" or not job_id[1:3].isdigit():
        raise ValueError(f"{job_id!r} is not a job id")
    if any(c not in _CROCKFORD for c in job_id[4:]):
        raise ValueError(f"{job_id!r} is not a job id")
    return Keys(int(job_id[1:3]))


def submitted_at(job_id: str) -> datetime:
    """The time at which a job got its id, in UTC: the same at every attempt, also if the job is submitted again because
    its server forgot it. Raises ValueError for anything that is not a job id."""
    cell_of(job_id)
    epoch = datetime.fromtimestamp(0, UTC)
    return epoch + min(timedelta(milliseconds=milliseconds_of(job_id[4:])), _LATEST - epoch)
