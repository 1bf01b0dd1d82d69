"""The live workers, and whether those of one model round alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import redis.asyncio

from octavo import wire
from octavo.connection import answered
from octavo.keys import Keys
from octavo.models import WorkerInfo


class Rounding(Protocol):
    """A worker, as far as rounding goes; see `WorkerInfo`."""

    @property
    def model(self) -> str: ...

    @property
    def numerics(self) -> str: ...


async def live_workers(connection: redis.asyncio.Redis, keys: Keys) -> list[WorkerInfo]:
    """All workers whose heartbeat is fresh, by id."""
    async with answered():
        names: Any = await connection.zrange(keys.workers, 0, -1)
        prefix = keys.worker("").encode()
        infos: Any = await connection.mget([prefix + name for name in names]) if names else []
    return sorted(wire.decode_each(wire.decode_worker, filter(None, infos)), key=lambda info: info.id)


def mixed_numerics(workers: Iterable[Rounding]) -> dict[str, tuple[str, ...]]:
    """Models whose workers do not all round alike, with what they compute in. After a takeover such a model goes on at
    the next token, but perhaps with another one than the worker before would have chosen."""
    found: dict[str, set[str]] = {}
    for worker in workers:
        if worker.numerics:
            found.setdefault(worker.model, set()).add(worker.numerics)
    return {model: tuple(sorted(names)) for model, names in sorted(found.items()) if len(names) > 1}


def describe_mix(model: str, numerics: Iterable[str]) -> str:
    """One line for people."""
    return f"workers of {model} round differently ({'; '.join(numerics)}): a takeover may change the tokens that follow"
