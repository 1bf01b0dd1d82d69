"""Look-ups of API keys: those at one time go together, and each is answered as if it were alone."""

from __future__ import annotations

import asyncio

import pytest
import redis

from octavo.client.keys import KeyClient
from octavo.queue.calls import Transition
from octavo.queue.tenants.keys import Looked
from octavo.terms.access.api_keys import KEY_ID, KeyDigests
from octavo.terms.access.secret import Secret
from octavo.terms.errors import ServerUnavailable

DIGESTS = KeyDigests(Secret(["s" * 64]))
UNKNOWN = KEY_ID + "0" * 26


async def test_keys_that_are_looked_for_at_one_time_take_few_round_trips(redis_url: str) -> None:
    seen: list[Transition] = []
    async with KeyClient(redis_url, DIGESTS, watch=seen.append) as client:
        made = [(await client.create(f"t{number}", "key"))[0] for number in range(5)]
        seen.clear()
        found = await asyncio.gather(*(client.look(key.id) for key in made for _ in range(3)), client.look(UNKNOWN))
        assert [looked.key for looked in found if looked is not None] == [key for key in made for _ in range(3)]
        assert found[-1] is None
        assert [call.script for call in seen] == ["key_look"] * 6


async def test_a_look_up_is_never_older_than_its_question(redis_url: str) -> None:
    async with KeyClient(redis_url, DIGESTS) as client:
        key, _ = await client.create("acme", "key")
        before = asyncio.create_task(client.look(key.id))
        await asyncio.sleep(0)
        await client.revoke(key.id)
        after = await client.look(key.id)
        assert after is not None
        assert after.key.revoked_at is not None
        assert isinstance(await before, Looked)


async def test_one_that_goes_away_ends_no_look_up_of_others(redis_url: str) -> None:
    async with KeyClient(redis_url, DIGESTS) as client:
        key, _ = await client.create("acme", "key")
        first, second = (asyncio.create_task(client.look(key.id)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        found = await second
        assert found is not None
        assert found.key.id == key.id


async def test_a_lost_connection_is_made_again_and_a_lost_server_is_said(
    redis_url: str, redis_sync: redis.Redis
) -> None:
    async with KeyClient(redis_url, DIGESTS) as client:
        key, _ = await client.create("acme", "key")
        assert await client.look(key.id)
        redis_sync.client_kill_filter(_type="normal", skipme=True)
        assert await client.look(key.id)
    async with KeyClient("redis://127.0.0.1:1/0", DIGESTS) as client:
        for _ in range(2):
            with pytest.raises(ServerUnavailable):
                await client.look(key.id)
