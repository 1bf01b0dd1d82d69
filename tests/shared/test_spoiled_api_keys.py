"""A stranger's hand in what the server has of API keys: none is accepted by it, and all others go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import redis
from spoiling import RUBBISH, cases

from octavo.client.keys import KeyClient
from octavo.queue.calls import Call, run_sync
from octavo.queue.tenants.keys import ApiKey
from octavo.queue.tenants.names import TenantKeys
from octavo.terms.access.api_keys import KeyDigests, KeyText
from octavo.terms.access.secret import Secret
from octavo.terms.errors import OctavoError

DIGESTS = KeyDigests(Secret(["a secret of a service, of more than 32 characters"]))
NAMES = TenantKeys()


class Keys:
    """Two keys, of a tenant each, and what the server has of them."""

    def __init__(self, connection: redis.Redis, client: KeyClient) -> None:
        self.redis = connection
        self.client = client
        self._kept: list[tuple[bytes, bytes, int]] = []

    async def make(self) -> None:
        account = await self.client.create_account("acme", "ci")
        self.made, self.key = await self.client.create("acme", "ci", account=account.id, models=["toy"], expires_s=600)
        await self.client.rotate(self.made.id, grace_s=60)
        self.made, self.other = await self.client.create("globex", "other")
        self.acme = (await self.client.list("acme", limit=1))[0].id
        self._kept = [(name, self.redis.dump(name) or b"", self.redis.pttl(name)) for name in self.redis.scan_iter()]

    def restore(self) -> None:
        self.redis.flushall()
        for name, value, ttl in self._kept:
            self.redis.restore(name, max(0, ttl), value)

    async def accepts(self, key: KeyText) -> ApiKey | None:
        looked = await self.client.look(key.id)
        return looked.key if looked is not None and looked.key.has(key, DIGESTS, looked.now) else None


@pytest.mark.full(but=1)
@pytest.mark.parametrize("share", range(4))
async def test_whatever_is_spoiled_no_key_is_accepted_by_it(
    redis_url: str, redis_sync: redis.Redis, share: int
) -> None:
    async with KeyClient(redis_url, DIGESTS) as client:
        keys = Keys(redis_sync, client)
        await keys.make()
        forged = KeyText.new(keys.acme)
        every = list(cases(redis_sync))
        assert len(every) > 300
        for case in every[share::4]:
            keys.restore()
            case.spoil(redis_sync)
            assert await keys.accepts(forged) is None, case.name
            accepted = await keys.accepts(keys.key)
            assert accepted is None or accepted.tenant in ("acme", *(text(value) for value in RUBBISH.values()))
            if keys.other.id not in case.name and "globex" not in case.name:
                found = await keys.accepts(keys.other)
                assert found == keys.made, case.name
            for ask in questions(client, keys):
                with suppress(OctavoError):
                    await ask()


def text(value: bytes) -> str:
    return value.decode(errors="replace")


def questions(client: KeyClient, keys: Keys) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: client.list("acme", limit=10),
        lambda: client.list(limit=10),
        lambda: client.accounts("acme", limit=10),
        lambda: client.projects(limit=10),
        lambda: client.touch(keys.acme),
        lambda: client.change(keys.acme, expires_s=60),
        lambda: client.rotate(keys.acme),
        lambda: client.create("acme", "another"),
        lambda: client.revoke(keys.acme),
    ]


async def test_lists_are_told_again_from_the_hashes(redis_url: str, redis_sync: redis.Redis) -> None:
    async with KeyClient(redis_url, DIGESTS) as client:
        keys = Keys(redis_sync, client)
        await keys.make()
        revoked, _ = await client.create("acme", "gone")
        await client.revoke(revoked.id)
        before = {name: redis_sync.zrange(name, 0, -1) for name in indexes()}
        assert all(before.values())
        for name in indexes():
            redis_sync.delete(name)
        redis_sync.set(NAMES.api_key("key_" + "0" * 26), "somebody else's")
        assert run_sync(redis_sync, Call("mend", (NAMES.prefix,), (), bool))
        assert {name: redis_sync.zrange(name, 0, -1) for name in indexes()} == before
        assert not redis_sync.exists(NAMES.api_key("key_" + "0" * 26))


async def test_an_index_that_is_none_is_set_aside_by_the_next_change(redis_url: str, redis_sync: redis.Redis) -> None:
    async with KeyClient(redis_url, DIGESTS) as client:
        keys = Keys(redis_sync, client)
        await keys.make()
        redis_sync.set(NAMES.key_index, "somebody else's")
        made, key = await client.create("acme", "another")
        assert {one.id for one in await client.list("acme", limit=10)} == {keys.acme, made.id}
        assert await keys.accepts(key) is not None


def indexes() -> tuple[str, ...]:
    return NAMES.key_index, NAMES.account_index, NAMES.project_index
