"""How the queue stands: what waits of each model and class, and what was counted in it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import redis.asyncio

from octavo.queue.batches.keys import BatchKeys
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.queue.operating.lanes import parse_pauses

CLASSES = ("high", "normal", "batch")
_SAMPLED = 256  # jobs of a lane whose tokens are read
_TENANTS = 256  # of a class, those with the smallest virtual time
_FIELDS = ("cls", "est", "ct")


@dataclass
class Waiting:
    """Jobs of one model and class that wait: `tokens` are those of their prompts, estimated."""

    jobs: int = 0
    tokens: float = 0.0
    oldest_s: float = 0.0


@dataclass(frozen=True)
class Standing:
    """The queue at one moment: what waits by model and class, jobs that were given up, how long the batch that is due
    for longest has waited, and counts by model since the server was set up. Paused lanes have no oldest
    wait."""

    waiting: dict[tuple[str, str], Waiting] = field(default_factory=dict)
    dead_letters: int = 0
    batch_lag_s: float = 0.0
    takeovers: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    paused: set[tuple[str, str]] = field(default_factory=set)


@dataclass
class _Lane:
    """A sorted set of jobs. `priority` is empty where it has jobs of several classes."""

    model: str
    priority: str
    name: str
    count: int = 0
    ids: list[str] = field(default_factory=list)


async def standing(connection: redis.asyncio.Redis, keys: Keys) -> Standing:
    """The queue as it stands, read in four round trips whatever waits. Raises redis-py's errors."""
    now_ms = time.time() * 1000
    async with answered():
        lanes, letters, due, tally, pauses = await _lanes(connection, keys)
        await _fill(connection, lanes)
        jobs = await _jobs(connection, keys, lanes)
    waiting: dict[tuple[str, str], Waiting] = {(lane.model, name): Waiting() for lane in lanes for name in CLASSES}
    for lane in lanes:
        _add(waiting, lane, [jobs[job_id] for job_id in lane.ids], now_ms)
    paused: set[tuple[str, str]] = {(lane.model, lane.priority) for lane in parse_pauses(pauses)}
    for place in paused & waiting.keys():
        waiting[place].oldest_s = 0.0  # no outage
    return Standing(
        waiting,
        dead_letters=letters if isinstance(letters, int) else 0,
        batch_lag_s=_lag(due, now_ms),
        takeovers=_counts(tally, "takeovers:"),
        refused=_counts(tally, "refused:"),
        paused=paused,
    )


async def _lanes(connection: redis.asyncio.Redis, keys: Keys) -> tuple[list[_Lane], Any, Any, Any, Any]:
    pipeline = connection.pipeline(transaction=False)
    pipeline.hkeys(keys.models)
    pipeline.xlen(keys.dead_letters)
    pipeline.zrange(BatchKeys(keys).due, 0, 0, withscores=True)
    pipeline.hgetall(keys.tally)
    pipeline.hgetall(keys.pauses)
    models, letters, due, tally, pauses = await pipeline.execute(raise_on_error=False)
    names = [name.decode(errors="replace") for name in models] if isinstance(models, list) else []
    for name in names:
        for priority in CLASSES:
            pipeline.zrange(keys.turns(priority, name), 0, _TENANTS - 1)
        pipeline.zrange(keys.parked(name), 0, _TENANTS - 1)
    replies: list[Any] = await pipeline.execute(raise_on_error=False) if names else []
    lanes, places = [], iter(replies)
    for name in names:
        lanes += [_Lane(name, "", keys.backlog(kind, name)) for kind in ("resume", "solo")]
        lanes.append(_Lane(name, "", keys.bound(name)))
        for priority in CLASSES:
            tenants = next(places)
            known = tenants if isinstance(tenants, list) else []
            lanes += [_own_lane(keys, name, priority, tenant.decode(errors="replace")) for tenant in known]
        lanes += [_own_lane(keys, name, *member) for member in parked_members(next(places))]
    return lanes, letters, due, tally, pauses


def _own_lane(keys: Keys, model: str, priority: str, tenant: str) -> _Lane:
    return _Lane(model, priority, keys.backlog(priority, f"{tenant}:{model}"))


def parked_members(members: Any) -> list[tuple[str, str]]:
    """Class and tenant of lanes that claims pass over, because their tenants run as many jobs as they may."""
    words = [name.decode(errors="replace").split(" ", 1) for name in members] if isinstance(members, list) else []
    return [(found[0], found[1]) for found in words if len(found) == 2]


async def _fill(connection: redis.asyncio.Redis, lanes: Sequence[_Lane]) -> None:
    pipeline = connection.pipeline(transaction=False)
    for lane in lanes:
        pipeline.zcard(lane.name)
        pipeline.zrange(lane.name, 0, _SAMPLED - 1)
    replies: list[Any] = await pipeline.execute(raise_on_error=False) if lanes else []
    for lane, count, ids in zip(lanes, replies[::2], replies[1::2], strict=True):
        if isinstance(count, int) and isinstance(ids, list):
            lane.count, lane.ids = count, [name.decode(errors="replace") for name in ids]


async def _jobs(connection: redis.asyncio.Redis, keys: Keys, lanes: Iterable[_Lane]) -> dict[str, list[Any]]:
    ids = list(dict.fromkeys(chain.from_iterable(lane.ids for lane in lanes)))
    pipeline = connection.pipeline(transaction=False)
    for job_id in ids:
        pipeline.hmget(keys.job(job_id), *_FIELDS)
    found: list[Any] = await pipeline.execute(raise_on_error=False) if ids else []
    return {job_id: values if isinstance(values, list) else [] for job_id, values in zip(ids, found, strict=True)}


def _add(waiting: dict[tuple[str, str], Waiting], lane: _Lane, jobs: Sequence[list[Any]], now_ms: float) -> None:
    """A lane is added: the sample of its jobs stands for all of them."""
    by_class: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for values in jobs:
        if len(values) == len(_FIELDS) and _is_number(values[1]) and _is_number(values[2]):
            priority = lane.priority or (values[0] or b"").decode(errors="replace")
            by_class[priority].append((int(values[1]), int(values[2])))
    whole = sum(map(len, by_class.values()))
    for priority, read in by_class.items():
        if (lane.model, priority) not in waiting:
            continue
        found, share = waiting[lane.model, priority], lane.count / whole
        found.jobs += round(len(read) * share)
        found.tokens += sum(tokens for tokens, _ in read) * share
        found.oldest_s = max(found.oldest_s, *((now_ms - at) / 1000 for _, at in read))


def _is_number(value: Any) -> bool:
    return isinstance(value, bytes) and value.isdigit() and len(value) < 16


def _lag(due: Any, now_ms: float) -> float:
    return max(0.0, (now_ms - due[0][1]) / 1000) if isinstance(due, list) and due else 0.0


def _counts(tally: Any, prefix: str) -> dict[str, int]:
    if not isinstance(tally, dict):
        return {}
    named = {name.decode(errors="replace"): value for name, value in tally.items() if _is_number(value)}
    return {name.removeprefix(prefix): int(value) for name, value in named.items() if name.startswith(prefix)}
