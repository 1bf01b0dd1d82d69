"""History of a run with faults, and its check against the invariants of the queue protocol.

The history is taken from three sides that know nothing of each other: what clients sent and heard, which writes the
workers saw accepted, and what the server holds in the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from octavo.terms.messages import Chunk, JobStatus, Terminal

PERMANENT_KEYS = {
    *("models", "traits", "reaper", "seq", "ev", "dlq", "jobs", "x", "workers", "bell:toy", "usage", "fold", "tally"),
}


@dataclass(frozen=True)
class Accepted:
    """One append that a worker was told is stored."""

    job_id: str
    attempt: int
    start: int
    count: int


@dataclass
class History:
    reference: dict[str, list[int]]  # accepted job -> the tokens of an undisturbed run
    heard: dict[str, list[int]] = field(default_factory=dict)  # tokens that a live reader was given, in order
    writes: list[Accepted] = field(default_factory=list)
    streams: dict[str, list[tuple[str, Chunk | Terminal]]] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)
    outbox: list[tuple[str, str]] = field(default_factory=list)  # (job, status)
    counters: dict[str, int] = field(default_factory=dict)
    immortal_keys: set[str] = field(default_factory=set)


def violations(history: History) -> list[str]:
    """Every broken invariant, by name; an empty list for a correct run."""
    checks: list[Callable[[History], Iterator[str]]] = [
        _ended_once,
        _gapless,
        _heard_what_is_stored,
        _content,
        _one_owner,
        _clean,
    ]
    return [f"{check.__name__.strip('_')}: {problem}" for check in checks for problem in check(history)]


def stored_tokens(stream: list[tuple[str, Chunk | Terminal]]) -> list[int]:
    return [token for _, entry in stream if isinstance(entry, Chunk) for token in entry.token_ids]


def _ended_once(history: History) -> Iterator[str]:
    """I1: every accepted job ends exactly once, and says so exactly once."""
    told = Counter(job for job, _ in history.outbox)
    for job in history.reference:
        status = history.statuses.get(job, "lost")
        if status == "lost" or not JobStatus(status).is_terminal:
            yield f"{job} is {status}"
        if told[job] != 1:
            yield f"{job} has {told[job]} events"
    for job, status in history.outbox:
        if history.statuses.get(job) != status:
            yield f"{job} was announced as {status}"


def _gapless(history: History) -> Iterator[str]:
    """I3: an entry's id counts the tokens up to its end; the terminal entry comes last, and once."""
    for job, stream in history.streams.items():
        count = 0
        for place, (entry_id, entry) in enumerate(stream):
            last = place == len(stream) - 1
            if isinstance(entry, Chunk):
                count += len(entry.token_ids)
            if isinstance(entry, Terminal) != last:
                yield f"{job} has a terminal entry at {place} of {len(stream)}"
            if entry_id != f"{count}-{int(isinstance(entry, Terminal))}":
                yield f"{job} has entry {entry_id} after {count} tokens"


def _heard_what_is_stored(history: History) -> Iterator[str]:
    """I4: what a reader heard live, through every fault, is exactly the stored stream."""
    for job in history.reference:
        if history.heard.get(job) != stored_tokens(history.streams.get(job, [])):
            yield f"{job} was heard differently"


def _content(history: History) -> Iterator[str]:
    """I5: stored tokens are those of an undisturbed run; a completed job has all of them."""
    for job, want in history.reference.items():
        tokens = stored_tokens(history.streams.get(job, []))
        if tokens != want[: len(tokens)]:
            yield f"{job} has other tokens"
        if history.statuses.get(job) == "completed" and len(tokens) != len(want):
            yield f"{job} completed with {len(tokens)} of {len(want)} tokens"


def _one_owner(history: History) -> Iterator[str]:
    """I6, I7: once a later attempt owns a job, no earlier one gets a token stored, and no token is stored twice."""
    by_job: dict[str, list[Accepted]] = defaultdict(list)
    for write in history.writes:
        by_job[write.job_id].append(write)
    for job, writes in by_job.items():
        writes.sort(key=lambda write: write.start)
        for earlier, later in pairwise(writes):
            if later.start < earlier.start + earlier.count:
                yield f"{job} stored offset {later.start} twice"
            if later.attempt < earlier.attempt:
                yield f"{job} took offset {later.start} from attempt {later.attempt} after {earlier.attempt}"


def _clean(history: History) -> Iterator[str]:
    """I10: nothing is counted any more, and no key stays for ever."""
    if history.counters:
        yield f"counters are {history.counters}"
    if extra := history.immortal_keys - PERMANENT_KEYS:
        yield f"keys without end: {sorted(extra)[:5]}"
