"""The live workers, and whether those of one model serve the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import redis.asyncio

from octavo.queue import wire
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.terms.workers import DIGEST_SHOWN, ModelCard, Traits, WorkerInfo

_ANSWER_S = 3.0  # workers answer between two steps


class Serving(Protocol):
    """A worker, as far as its answers go; see `WorkerInfo`."""

    @property
    def model(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def numerics(self) -> str: ...


async def live_workers(connection: redis.asyncio.Redis, keys: Keys) -> list[WorkerInfo]:
    """All workers whose heartbeat is fresh, by id."""
    return [info for info, _ in await beating_workers(connection, keys)]


async def beating_workers(connection: redis.asyncio.Redis, keys: Keys) -> list[tuple[WorkerInfo, float]]:
    """The same, each with the time of its latest heartbeat by the server's clock, in seconds since the epoch."""
    async with answered():
        beats: Any = await connection.zrange(keys.workers, 0, -1, withscores=True)
        prefix = keys.worker("").encode()
        infos: Any = await connection.mget([prefix + name for name, _ in beats]) if beats else []
    found = [
        (info, at / 1000)
        for (_, at), data in zip(beats, infos, strict=True)
        for info in wire.readable(wire.decode_worker, filter(None, [data]))
    ]
    return sorted(found, key=lambda beat: beat[0].id)


async def known_models(connection: redis.asyncio.Redis, keys: Keys) -> list[ModelCard]:
    """All models that jobs are accepted for, by name."""
    pipeline = connection.pipeline(transaction=False)
    pipeline.hvals(keys.models)
    pipeline.hgetall(keys.traits)
    pipeline.hkeys(keys.aliases)
    async with answered():
        cards, traits, others = await pipeline.execute()
    aliases: dict[str, list[str]] = {}
    names = [name.decode(errors="replace") for name in sorted(others)]
    for alias, model in zip(names, await models_of(connection, keys, names), strict=True):
        if alias != model:
            aliases.setdefault(model, []).append(alias)
    return [
        card.model_copy(
            update={**dict(_traits(traits.get(card.name.encode()))), "aliases": tuple(aliases.get(card.name, ()))}
        )
        for card in sorted(wire.readable(wire.decode_model, cards), key=lambda card: card.name)
    ]


async def models_of(connection: redis.asyncio.Redis, keys: Keys, names: Sequence[str]) -> list[str]:
    """The models that these names stand for: an alias for as long as a worker lives that announces it, any other name
    for itself. The name of a job is resolved where it is accepted, by the script."""
    if not names:
        return []
    async with answered():
        announced: Any = await connection.hmget(keys.aliases, names)
    said = zip(names, announced, strict=True)
    found = {name: words.decode(errors="replace").split() for name, words in said if words and words.strip()}
    if not found:
        return list(names)
    pipeline = connection.pipeline(transaction=False)
    for _, *workers in found.values():
        pipeline.exists(*map(keys.worker, workers or [""]))
    async with answered():
        living = await pipeline.execute()
    alive = dict(zip(found, living, strict=True))
    return [found[name][0] if alive.get(name) else name for name in names]


def _traits(data: bytes | None) -> Traits:
    found = wire.readable(wire.decode_traits, [] if data is None else [data])
    return found[0] if found else Traits()


async def queue_depths(connection: redis.asyncio.Redis, keys: Keys) -> dict[str, int]:
    """Jobs that wait, by model."""
    pipeline = connection.pipeline(transaction=False)
    pipeline.hkeys(keys.models)
    pipeline.hgetall(keys.counters)
    async with answered():
        models, counters = await pipeline.execute()
    depths = {name: counters.get(b"queued:" + name, b"0") for name in models}
    return {name.decode(errors="replace"): int(depth) if depth.isdigit() else 0 for name, depth in depths.items()}


def mixed_models(workers: Iterable[Serving]) -> dict[str, tuple[str, ...]]:
    """Models whose workers do not all serve the same, with what they serve. None of them goes on with a job that has
    tokens of another."""
    found: dict[str, set[str]] = {}
    for worker in workers:
        if worker.digest or worker.numerics:
            name = worker.digest[:DIGEST_SHOWN]
            found.setdefault(worker.model, set()).add(f"{name} {worker.numerics}".strip())
    return {model: tuple(sorted(names)) for model, names in sorted(found.items()) if len(names) > 1}


def describe_mix(model: str, served: Iterable[str]) -> str:
    """One line for people."""
    return f"workers of {model} do not serve the same ({'; '.join(served)}): none goes on with jobs of another"
