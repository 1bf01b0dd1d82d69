"""API keys: their form, their digests, and their changes on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from octavo.client.keys import KeyClient
from octavo.queue.calls import run_sync
from octavo.queue.tenants.keys import MOST_GRACE_S, NewKey, TenantCell
from octavo.queue.tenants.names import ACCOUNT_ID, TenantKeys, new_id
from octavo.terms.access.api_keys import KEY_ID, OF_TENANTS, KeyDigests, KeyText, Scope
from octavo.terms.access.secret import Secret
from octavo.terms.errors import InvalidRequest, NoSecret

OLD, NEW = "an old secret of more than 32 characters", "a new secret of more than 32 characters"
DIGESTS = KeyDigests(Secret([OLD]))
KEYS, CELL = TenantKeys(), TenantCell()


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[KeyClient]:
    async with KeyClient(redis_url, DIGESTS) as opened:
        yield opened


def test_a_key_names_its_id_and_every_typing_error_shows() -> None:
    key = KeyText.new(new_id(KEY_ID))
    assert KeyText.parse(key.text) == key
    assert key.text.startswith(f"sk-oct-{key.id.removeprefix(KEY_ID)}-")
    assert key.text not in repr(key)
    for place in range(len("sk-oct-"), len(key.text)):
        other = "A" if key.text[place] != "A" else "B"
        assert KeyText.parse(key.text[:place] + other + key.text[place + 1 :]) is None, place
    for text in ("", key.text[:-1], f"{key.text}0", f" {key.text}", key.text.lower(), "sk-proj-abc", key.text[:40]):
        assert KeyText.parse(text) is None
    for first in range(len(key.text) - 50, len(key.text) - 1):  # two letters in the wrong order
        swapped = key.text[:first] + key.text[first + 1] + key.text[first] + key.text[first + 2 :]
        assert swapped == key.text or KeyText.parse(swapped) is None


def test_two_keys_of_one_id_have_nothing_in_common() -> None:
    key_id = new_id(KEY_ID)
    texts = {KeyText.new(key_id).text.rpartition("-")[2] for _ in range(50)}
    assert len(texts) == 50
    assert {len(text) for text in texts} == {49}


def test_every_line_of_the_secret_verifies_and_the_first_one_makes() -> None:
    key = KeyText.new(new_id(KEY_ID))
    both, new = KeyDigests(Secret([NEW, OLD])), KeyDigests(Secret([NEW]))
    assert both.match(key, DIGESTS.of(key))
    assert both.match(key, new.of(key))
    assert both.of(key) == new.of(key)
    assert not new.match(key, DIGESTS.of(key))
    assert not both.match(KeyText.new(key.id), both.of(key))
    assert key.text not in DIGESTS.of(key)


async def test_the_server_has_what_was_asked_for_and_never_the_key(client: KeyClient, redis_sync: redis.Redis) -> None:
    scopes = frozenset({Scope.JOBS_READ, Scope.USAGE})
    made, key = await client.create("acme", "ci", scopes=scopes, models=["toy", "demo"], expires_s=60)
    assert (made.id, made.tenant, made.name, made.scopes, made.models) == (
        key.id,
        "acme",
        "ci",
        scopes,
        ("toy", "demo"),
    )
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == pytest.approx(60, abs=0.01)
    looked = await client.look(key.id)
    assert looked is not None
    assert looked.key == made
    assert looked.key.has(key, DIGESTS, looked.now)
    secret = key.text.rpartition("-")[2]
    for name in redis_sync.scan_iter():
        dumped = redis_sync.dump(name) or b""
        assert secret.encode() not in dumped
        assert secret[:20].encode() not in dumped
    assert secret not in repr(made)
    assert made.digest not in repr(made)


async def test_a_call_that_is_repeated_changes_nothing(client: KeyClient, redis_sync: redis.Redis) -> None:
    new = NewKey(new_id(KEY_ID), "acme", "ci", "0" * 64)
    for _ in range(2):
        run_sync(redis_sync, CELL.put(new))
        assert [key.id for key in await client.list("acme", limit=10)] == [new.id]
    for _ in range(2):
        assert run_sync(redis_sync, CELL.rotate(new.id, "1" * 64, grace_s=60))
        (key,) = await client.list("acme", limit=10)
        assert (key.digest, key.previous_digest) == ("1" * 64, "0" * 64)
    assert run_sync(redis_sync, CELL.revoke(new.id))
    assert not run_sync(redis_sync, CELL.revoke(new.id))
    assert not run_sync(redis_sync, CELL.rotate(new.id, "2" * 64))
    assert not run_sync(redis_sync, CELL.change(new.id, expires_s=60))
    assert not run_sync(redis_sync, CELL.touch(new.id))


async def test_the_old_secret_holds_strictly_before_its_deadline(client: KeyClient) -> None:
    made, first = await client.create("acme", "ci")
    second = await client.rotate(made.id, tenant="acme", grace_s=60)
    assert second is not None
    assert second.id == made.id
    looked = await client.look(made.id)
    assert looked is not None
    deadline = looked.key.previous_until
    assert looked.key.has(first, DIGESTS, deadline - 0.001)
    assert not looked.key.has(first, DIGESTS, deadline)
    assert looked.key.has(second, DIGESTS, deadline + 1)
    third = await client.rotate(made.id)
    looked = await client.look(made.id)
    assert third is not None
    assert looked is not None
    assert [looked.key.has(one, DIGESTS, looked.now) for one in (first, second, third)] == [False, False, True]
    with pytest.raises(InvalidRequest):
        await client.rotate(made.id, grace_s=MOST_GRACE_S + 1)
    assert await client.rotate(made.id, tenant="globex") is None


async def test_use_is_noted_once_a_minute(client: KeyClient, redis_sync: redis.Redis) -> None:
    made, _ = await client.create("acme", "ci")
    assert run_sync(redis_sync, CELL.touch(made.id))
    assert not run_sync(redis_sync, CELL.touch(made.id))
    noted = int(redis_sync.hget(KEYS.api_key(made.id), "used") or 0)
    redis_sync.hset(KEYS.api_key(made.id), "used", noted - 60_000)
    assert run_sync(redis_sync, CELL.touch(made.id))
    redis_sync.hset(KEYS.api_key(made.id), "used", noted + 86_400_000)  # before the clock was set back
    assert run_sync(redis_sync, CELL.touch(made.id))


async def test_a_revoked_key_leaves_every_list_and_is_forgotten_later(
    client: KeyClient, redis_sync: redis.Redis
) -> None:
    account = await client.create_account("acme", "ci")
    made, _ = await client.create("acme", "ci", account=account.id)
    assert await client.revoke(made.id, tenant="globex") is False
    assert await client.revoke(made.id, tenant="acme") is True
    assert await client.list("acme", limit=10) == [] == await client.list(limit=10)
    assert redis_sync.zrange(KEYS.key_index, 0, -1) == []
    found = await client.key(made.id)
    assert found is not None
    assert found.revoked_at is not None
    assert 0 < redis_sync.ttl(KEYS.api_key(made.id)) <= 30 * 86_400


async def test_an_account_takes_its_keys_along(client: KeyClient) -> None:
    account, other = await client.create_account("acme", "ci"), await client.create_account("acme", "cd")
    lost = [(await client.create("acme", f"n{n}", account=account.id))[0].id for n in range(3)]
    kept, _ = await client.create("acme", "other", account=other.id)
    assert not await client.drop_account(account.id, tenant="globex")
    assert await client.drop_account(account.id, tenant="acme")
    assert [key.id for key in await client.list("acme", limit=10)] == [kept.id]
    for key_id in lost:
        found = await client.key(key_id)
        assert found is not None
        assert found.revoked_at is not None
    assert [found.id for found in await client.accounts("acme", limit=10)] == [other.id]
    with pytest.raises(InvalidRequest, match="no such service account"):
        await client.create("acme", "late", account=account.id)
    with pytest.raises(InvalidRequest, match="no such service account"):
        await client.create("globex", "strange", account=other.id)


async def test_lists_are_pages_of_one_tenant(client: KeyClient) -> None:
    made = {tenant: [(await client.create(tenant, f"n{n}"))[0].id for n in range(3)] for tenant in ("a", "a.b")}
    for tenant, ids in made.items():
        first = [key.id for key in await client.list(tenant, limit=2)]
        rest = [key.id for key in await client.list(tenant, limit=2, after=first[-1])]
        assert sorted(first + rest) == sorted(ids)
    assert len(await client.list(limit=10)) == 6
    assert [project.id for project in await client.projects(limit=10)] == ["a", "a.b"]
    assert [project.id for project in await client.projects(limit=10, after="a")] == ["a.b"]


async def test_an_archived_project_gets_no_keys(client: KeyClient) -> None:
    made, _ = await client.create("acme", "ci")
    assert await client.archive("acme")
    assert not await client.archive("globex")
    looked = await client.look(made.id)
    assert looked is not None
    assert looked.is_archived
    with pytest.raises(InvalidRequest, match="archived"):
        await client.create("acme", "late")
    with pytest.raises(InvalidRequest, match="archived"):
        await client.create_account("acme", "late")
    assert await client.projects(limit=10) == []
    assert [project.id for project in await client.projects(limit=10, archived=True)] == ["acme"]
    assert await client.create_project("again", "acme") is None


async def test_nothing_is_made_of_what_is_malformed(client: KeyClient, redis_url: str) -> None:
    for broken in ({"name": ""}, {"name": "a\nb"}, {"models": [""]}, {"expires_s": 0}, {"tenant": "a:b"}):
        asked = {"tenant": "acme", "name": "ci", **broken}
        with pytest.raises(InvalidRequest):
            await client.create(**asked)
    async with KeyClient(redis_url) as without_secret:
        with pytest.raises(NoSecret):
            await without_secret.create("acme", "ci")
    assert await client.list(limit=10) == []
    assert await client.account(new_id(ACCOUNT_ID), tenant="acme") is None


async def test_a_key_is_changed_in_place(client: KeyClient) -> None:
    made, key = await client.create("acme", "ci")
    assert made.scopes == OF_TENANTS
    assert not await client.change(made.id, tenant="globex", scopes=frozenset({Scope.USAGE}))
    assert await client.change(made.id, tenant="acme", scopes=frozenset({Scope.USAGE}), expires_s=60)
    looked = await client.look(made.id)
    assert looked is not None
    assert looked.key.has(key, DIGESTS, looked.now)
    assert looked.key.scopes == {Scope.USAGE}
    assert looked.key.expires_at is not None
    assert await client.change(made.id, scopes=frozenset())
    changed = await client.key(made.id)
    assert changed is not None
    assert (changed.scopes, changed.expires_at) == (OF_TENANTS, looked.key.expires_at)
