"""Pinned prefixes as the server keeps them: each tenant's own, under a limit, with what workers made of the latest."""

from __future__ import annotations

import fake_worker as fake
import pytest
import redis.asyncio

from octavo import AsyncClient, InvalidRequest
from octavo.client import pins as module
from octavo.client.pins import version_of
from octavo.queue import wire
from octavo.queue.calls import run
from octavo.terms.workers import PinOutcome, WorkerInfo


async def test_a_name_is_each_tenant_s_own(client: AsyncClient) -> None:
    for tenant in ("acme", "globex"):
        await client.pin_prefix("p", model=fake.MODEL, system=f"of {tenant}", tenant=tenant)
    assert await client.unpin_prefix("p", model=fake.MODEL, tenant="acme")
    assert not await client.unpin_prefix("p", model=fake.MODEL, tenant="acme")
    assert [(kept.pin.tenant, kept.pin.system) for kept in await client.pins()] == [("globex", "of globex")]


async def test_only_what_a_worker_made_of_the_present_prefix_is_shown(
    client: AsyncClient, connection: redis.asyncio.Redis
) -> None:
    old = await client.pin_prefix("p", model=fake.MODEL, system="old")
    outcome = PinOutcome(state="pinned", version=version_of(old), tokens=16)
    info = WorkerInfo(id="w", model=fake.MODEL, host="here", pid=1, started_at=1.0, pins={old.key: outcome})
    await run(connection, fake.CELL.heartbeat("w", [], lease_ms=60_000, info=wire.encode_worker(info)))
    assert [kept.workers for kept in await client.pins()] == [{"w": outcome}]
    await client.pin_prefix("p", model=fake.MODEL, system="new")
    assert [kept.workers for kept in await client.pins()] == [{"w": None}]


async def test_pins_have_a_limit_that_replacing_one_keeps(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PINS", 2)
    for name in ("a", "b", "a"):
        await client.pin_prefix(name, model=fake.MODEL, system=name)
    with pytest.raises(InvalidRequest, match="drop one"):
        await client.pin_prefix("c", model=fake.MODEL, system="c")
