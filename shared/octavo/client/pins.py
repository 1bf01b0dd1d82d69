"""Prefixes that workers keep resident. They are stored in the server, so that workers that start later pin them too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import redis.asyncio
from pydantic import ValidationError

from octavo.client.requests import Prompt, invalid
from octavo.queue import wire
from octavo.queue.fleet import live_workers, models_of
from octavo.queue.keys import Keys
from octavo.terms.errors import InvalidRequest, UnknownModel
from octavo.terms.fields import MAX_BODY_BYTES, MAX_PINS
from octavo.terms.workers import PinnedPrefix, PrefixPin, WorkerInfo

PINS_CHANGED = "pins"
"""Message in the inbox of a worker; without it, a worker looks by itself after some seconds."""


def build_pin(name: str, model: str, tenant: str, system: str | None, prompt: Prompt | None) -> PrefixPin:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = {"name": name, "model": model, "tenant": tenant, "system": system, "prompt": prompt}
    try:
        return PrefixPin.model_validate(fields)
    except ValidationError as error:
        raise invalid(error) from None  # the cause would quote the prompt


def version_of(pin: PrefixPin) -> str:
    """Changes with what is pinned: workers say which they have."""
    return hashlib.blake2b(wire.encode_pin(pin), digest_size=8).hexdigest()


async def store_pin(connection: redis.asyncio.Redis, keys: Keys, pin: PrefixPin) -> PrefixPin:
    """Ask for a pin, in place of the one that the tenant had under its name. It is that of the model which an alias
    stands for. Raises InvalidRequest, UnknownModel."""
    (model,) = await models_of(connection, keys, [pin.model])
    pin = pin.model_copy(update={"model": model})
    data = wire.encode_pin(pin)
    if len(data) > MAX_BODY_BYTES:
        raise InvalidRequest(f"the prefix has {len(data)} bytes, the limit is {MAX_BODY_BYTES}: shorten it")
    pipeline = connection.pipeline(transaction=False)
    pipeline.hexists(keys.models, pin.model)
    pipeline.hlen(keys.pins(pin.model))
    pipeline.hexists(keys.pins(pin.model), pin.key)
    model_known, count, replaces = await pipeline.execute()
    if not model_known:
        raise UnknownModel(
            f"no worker has ever served the model {pin.model!r}: `octavo workers` lists them", param="model"
        )
    if count >= MAX_PINS and not replaces:
        raise InvalidRequest(f"{pin.model} has {count} pinned prefixes already, the limit: drop one of them first")
    await connection.hset(keys.pins(pin.model), pin.key, data)
    return pin


async def drop_pin(connection: redis.asyncio.Redis, keys: Keys, model: str, tenant: str, name: str) -> bool:
    """Removes a pin. True if there was one."""
    (model,) = await models_of(connection, keys, [model])
    return bool(await connection.hdel(keys.pins(model), f"{tenant}:{name}"))


async def list_pins(
    connection: redis.asyncio.Redis, keys: Keys, models: Sequence[str], workers: Sequence[WorkerInfo]
) -> list[PinnedPrefix]:
    """The pins of these models with what has become of them on each worker, by model, tenant and name."""
    models = await models_of(connection, keys, models)
    pipeline = connection.pipeline(transaction=False)
    for model in models:
        pipeline.hvals(keys.pins(model))
    rows: Any = await pipeline.execute() if models else []
    pins = wire.readable(wire.decode_pin, (data for row in rows for data in row))
    return [_with_outcomes(pin, workers) for pin in sorted(pins, key=lambda pin: (pin.model, pin.key))]


def _with_outcomes(pin: PrefixPin, workers: Sequence[WorkerInfo]) -> PinnedPrefix:
    serving = [worker for worker in workers if worker.model == pin.model]
    current = {worker.id: worker.pins.get(pin.key) for worker in serving}
    version = version_of(pin)
    return PinnedPrefix(
        pin=pin,
        workers={
            name: outcome if outcome is not None and outcome.version == version else None
            for name, outcome in current.items()
        },
    )


async def announce(connection: redis.asyncio.Redis, keys: Keys, model: str) -> None:
    """Tell the workers of a model that its pins have changed."""
    (model,) = await models_of(connection, keys, [model])
    pipeline = connection.pipeline(transaction=False)
    for worker in await live_workers(connection, keys):
        if worker.model == model:
            pipeline.rpush(keys.inbox(worker.id), PINS_CHANGED)
            pipeline.expire(keys.inbox(worker.id), 10)
    await pipeline.execute()
