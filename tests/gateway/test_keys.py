"""Keys that the server keeps, at gateways: accepted, refused, and gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import redis
import redis.asyncio
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo.client.keys import KeyClient
from octavo.queue.keys import Keys
from octavo.queue.tenants.names import TenantKeys, new_id
from octavo.service.server import EmbeddedServer
from octavo.terms.access.api_keys import KEY_ID, KeyDigests, KeyText, Scope
from octavo.terms.access.secret import Secret
from octavo.terms.errors import ServerUnavailable
from octavo_gateway.auth import cache as cache_module
from octavo_gateway.auth.cache import KNOWN_S, MOST_KEYS, MOST_UNKNOWN, KeyCache
from octavo_gateway.auth.keyring import Keyring
from octavo_gateway.errors import ApiError
from octavo_gateway.settings import GatewaySettings

SECRET = "a secret of a service, of more than 32 characters"
DIGESTS = KeyDigests(Secret([SECRET]))
KEYS = TenantKeys()


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[KeyClient]:
    async with KeyClient(redis_url, DIGESTS) as client:
        yield client


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(secret=SECRET, require_keys=True)


def bearer(key: KeyText | str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key if isinstance(key, str) else key.text}"}


async def code_of(url: str, key: KeyText | str, path: str = "/v1/jobs") -> tuple[int, str | None]:
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        answer = await http.get(path, headers=bearer(key))
        return answer.status_code, None if answer.is_success else answer.json()["error"]["code"]


async def test_a_job_is_of_the_key_s_tenant_and_names_the_key(
    url: str, keys: KeyClient, redis_sync: redis.Redis, redis_url: str
) -> None:
    made, key = await keys.create("acme", "ci")
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        for headers in (bearer(key), {"X-Api-Key": key.text}):
            for body in ({"prompt": "x"}, {"prompt": ["x", "y"]}):
                assert (await http.post("/v1/completions", headers=headers, json={"model": MODEL, **body})).is_success
        jobs = (await http.get("/v1/jobs", headers=bearer(key))).json()["data"]
        assert [job["tenant"] for job in jobs] == ["acme"] * 6
        for job in jobs:
            assert redis_sync.hget(Keys().job(job["id"]), "key") == made.id.encode()
        assert (await http.get("/v1/jobs", auth=("any", key.text))).status_code == 200
    used = await until(lambda: redis_sync.hget(KEYS.api_key(made.id), "used"))
    assert int(used) >= made.created_at * 1000


async def test_every_wrong_key_has_the_same_answer(url: str, keys: KeyClient) -> None:
    made, key = await keys.create("acme", "ci")
    typo = key.text[:-1] + ("A" if key.text[-1] != "A" else "B")
    wrong = [KeyText.new(made.id), KeyText.new(new_id(KEY_ID)), typo, "sk-oct-", "anything"]
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        answers = [await http.get("/v1/jobs", headers=bearer(one)) for one in wrong]
        assert {(answer.status_code, answer.text, answer.headers["www-authenticate"]) for answer in answers} == {
            (401, answers[0].text, answers[0].headers["www-authenticate"])
        }
        assert answers[0].json()["error"]["code"] == "invalid_api_key"
        missing = await http.get("/v1/jobs")
        assert (missing.status_code, missing.json()["error"]["code"]) == (401, "missing_api_key")


async def test_revoked_expired_and_archived_keys_say_so_to_their_holders_alone(
    url: str, keys: KeyClient, redis_sync: redis.Redis
) -> None:
    revoked, expired, archived = [await keys.create(tenant, "ci") for tenant in ("acme", "globex", "initech")]
    for _, key in (revoked, expired, archived):
        assert (await code_of(url, key))[0] == 200
    await keys.revoke(revoked[0].id)
    await keys.change(expired[0].id, expires_s=1)
    await keys.archive("initech")
    for (_, key), found in (
        (revoked, (401, "api_key_revoked")),
        (expired, (401, "api_key_expired")),
        (archived, (403, "project_archived")),
    ):
        await until(lambda key=key, found=found: same(code_of(url, key), found))
        assert await code_of(url, KeyText.new(key.id)) == (401, "invalid_api_key")


async def same(asked: Coroutine[Any, Any, Any], wanted: Any) -> bool:
    return bool(await asked == wanted)


async def test_all_gateways_hear_of_a_change(own_gateway: Callable[..., str], keys: KeyClient) -> None:
    urls = [own_gateway(secret=SECRET, require_keys=True) for _ in range(2)]
    made, first = await keys.create("acme", "ci")
    for url in urls:
        assert await code_of(url, first) == (200, None)
    second = await keys.rotate(made.id, grace_s=600)
    assert second is not None
    for url in urls:
        await until(lambda url=url: same(code_of(url, second), (200, None)))
        assert await code_of(url, first) == (200, None)
    third = await keys.rotate(made.id)
    assert third is not None
    for url in urls:
        await until(lambda url=url: same(code_of(url, first), (401, "invalid_api_key")))
        assert await code_of(url, second) == (401, "invalid_api_key")
        assert await code_of(url, third) == (200, None)


class Hearing(KeyCache):
    """A cache that tells what it heard."""

    heard: ClassVar[list[str]]

    def forget(self, key_id: str) -> None:
        super().forget(key_id)
        self.heard.append(key_id)


async def test_a_gateway_hears_of_every_change(
    keys: KeyClient, redis_async: redis.asyncio.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order: what is heard before the mark that follows a change is all that there is of it."""
    heard: list[str] = []
    monkeypatch.setattr(Hearing, "heard", heard, raising=False)
    listening = asyncio.create_task(Hearing(keys, DIGESTS, lambda work: work.close()).listen())
    account = await keys.create_account("globex", "ci")

    async def told_of(change: Coroutine[Any, Any, Any]) -> tuple[list[str], Any]:
        heard.clear()
        outcome = await change
        await redis_async.publish(KEYS.changes, "mark")
        await until(lambda: "mark" in heard)
        return heard[:-1], outcome

    try:
        await until(lambda: heard == ["*"])
        told, (made, _) = await told_of(keys.create("acme", "ci"))
        assert told == [made.id]
        of_account, _ = await keys.create("globex", "ci", account=account.id)
        await until(lambda: of_account.id in heard)
        assert (await told_of(keys.change(made.id, scopes=frozenset({Scope.USAGE}))))[0] == [made.id]
        assert (await told_of(keys.rotate(made.id)))[0] == [made.id]
        assert (await told_of(keys.touch(made.id)))[0] == []
        assert (await told_of(keys.revoke(made.id)))[0] == [made.id]
        assert (await told_of(keys.drop_account(account.id, tenant="globex")))[0] == [of_account.id]
        assert (await told_of(keys.archive("globex")))[0] == ["*"]
    finally:
        listening.cancel()
        await asyncio.wait([listening])


async def test_archived_keys_refused(redis_url: str, cache: KeyCache, lookups: Lookups) -> None:
    _, key = await lookups.create("acme", "ci")
    await lookups.archive("acme")
    assert await refusal(cache, key) == "project_archived"


async def test_a_gateway_without_a_secret_says_what_it_lacks(own_gateway: Callable[..., str], keys: KeyClient) -> None:
    _, key = await keys.create("acme", "ci")
    url = own_gateway(api_keys="acme:a-key")
    assert await code_of(url, key) == (501, "no_secret")
    assert await code_of(url, "a-key") == (200, None)
    assert await code_of(own_gateway(api_keys="acme:a-key", secret=SECRET), key) == (200, None)
    with pytest.raises(ValueError, match="OCTAVO_REQUIRE_KEYS needs"):
        Keyring.of(GatewaySettings(require_keys=True))


async def test_keys_are_asked_for_where_they_are_required(own_gateway: Callable[..., str], keys: KeyClient) -> None:
    async with httpx.AsyncClient(timeout=STALL_S) as http:
        assert (await http.get(f"{own_gateway(secret=SECRET)}/v1/jobs")).status_code == 200
        assert (await http.get(f"{own_gateway(secret=SECRET, require_keys=True)}/v1/jobs")).status_code == 401


async def test_a_gateway_that_ignores_keys_says_so(
    own_gateway: Callable[..., str], keys: KeyClient, caplog: pytest.LogCaptureFixture
) -> None:
    words = "this gateway asks for none"
    await keys.create("acme", "ci")
    own_gateway(secret=SECRET, require_keys=True)
    assert words not in caplog.text
    own_gateway()
    await until(lambda: words in caplog.text)


def test_a_file_may_hold_digests(tmp_path: Path) -> None:
    digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # of "secret"
    file = tmp_path / "keys"
    file.write_text(f"acme:sha256:{digest}\nglobex:sha256:{digest.upper()[:-1]}A\ninitech:plain\n")
    keyring = Keyring.load(None, file, ("acme",))
    found = keyring.find(b"secret")
    assert found is not None
    assert (found.tenant, found.is_operator) == ("acme", True)
    assert keyring.find(f"sha256:{digest}".encode()) is None
    assert keyring.find(b"plain") is not None
    file.write_text("acme:sha256:abc\n")
    with pytest.raises(ValueError, match="not sha256: and 64 hexadecimal digits") as caught:
        Keyring.load(None, file)
    assert "abc" not in str(caught.value)


async def test_without_the_server_a_key_is_not_refused(tmp_path: Path, own_gateway: Callable[..., str]) -> None:
    with EmbeddedServer(data_dir=tmp_path / "data") as server:
        url = own_gateway(redis_url=server.url, secret=SECRET, require_keys=True, api_keys="acme:a-key")
        async with KeyClient(server.url, DIGESTS) as client:
            _, key = await client.create("acme", "ci")
        assert (await code_of(url, key))[0] == 200
        server.kill()
        await until(lambda: same(code_of(url, key, "/docs"), (503, "server_unavailable")))
        for strange in (key, KeyText.new(key.id), KeyText.new(new_id(KEY_ID))):
            assert await code_of(url, strange, "/docs") == (503, "server_unavailable")
        assert await code_of(url, "no key at all", "/docs") == (401, "invalid_api_key")
        assert (await code_of(url, "a-key", "/docs"))[0] == 200


class Clock:
    """The time of a cache, which a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lookups(KeyClient):
    """A client that counts, and may hold back, what it is asked for."""

    def __init__(self, url: str) -> None:
        super().__init__(url, DIGESTS)
        self.count = 0
        self.answered = asyncio.Event()
        self.answered.set()
        self.delay = lambda: None

    async def look(self, key_id: str) -> Any:
        self.count += 1
        found = await super().look(key_id)
        self.delay()
        await self.answered.wait()
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(cache_module, "monotonic", moved)
    return moved


@pytest.fixture
async def lookups(redis_url: str) -> AsyncIterator[Lookups]:
    async with Lookups(redis_url) as client:
        yield client


@pytest.fixture
async def cache(lookups: Lookups, clock: Clock) -> AsyncIterator[KeyCache]:
    tasks = set[asyncio.Task[Any]]()
    yield KeyCache(lookups, DIGESTS, lambda work: tasks.add(asyncio.create_task(work)))
    await asyncio.gather(*tasks)


async def refusal(cache: KeyCache, key: KeyText) -> str | None:
    with pytest.raises(ApiError) as caught:
        await cache.caller(key)
    return caught.value.code


async def test_a_key_is_looked_for_once_a_second_and_so_is_an_unknown_one(
    cache: KeyCache, lookups: Lookups, clock: Clock
) -> None:
    _, key = await lookups.create("acme", "ci")
    unknown = KeyText.new(new_id(KEY_ID))
    for _ in range(2):
        before = lookups.count
        for _ in range(5):
            assert (await cache.caller(key)).tenant == "acme"
            assert await refusal(cache, unknown) == "invalid_api_key"
        assert lookups.count - before == 2
        clock.now += KNOWN_S


async def test_a_lost_message_is_made_up_for_within_a_second(
    cache: KeyCache, lookups: Lookups, clock: Clock, redis_sync: redis.Redis
) -> None:
    made, key = await lookups.create("acme", "ci")
    assert (await cache.caller(key)).key_id == made.id
    redis_sync.hset(KEYS.api_key(made.id), "rev", 1)
    clock.now += KNOWN_S - 0.01
    assert (await cache.caller(key)).key_id == made.id
    clock.now += 0.01
    assert await refusal(cache, key) == "api_key_revoked"


async def test_deadlines_hold_also_while_a_key_is_in_memory(cache: KeyCache, lookups: Lookups, clock: Clock) -> None:
    made, first = await lookups.create("acme", "ci", expires_s=3600)
    await lookups.rotate(made.id, grace_s=1)
    looked = await lookups.look(made.id)
    left = looked.key.previous_until - looked.now
    assert 0 < left <= 1
    if left > 0.5:
        assert (await cache.caller(first)).key_id == made.id
        clock.now += min(left, KNOWN_S - 0.001)
        if left < KNOWN_S:
            before = lookups.count
            assert await refusal(cache, first) == "invalid_api_key"
            assert lookups.count == before


async def test_an_answer_of_before_a_change_is_not_kept(
    cache: KeyCache, lookups: Lookups, redis_sync: redis.Redis
) -> None:
    made, key = await lookups.create("acme", "ci")
    lookups.answered.clear()
    waiting = asyncio.create_task(cache.caller(key))
    await until(lambda: lookups.count)
    await lookups.revoke(made.id)
    cache.forget(made.id)
    lookups.answered.set()
    await asyncio.wait([waiting])
    assert await refusal(cache, key) == "api_key_revoked"


async def test_requests_share_a_look_and_none_ends_it_for_others(cache: KeyCache, lookups: Lookups) -> None:
    _, key = await lookups.create("acme", "ci")
    lookups.answered.clear()
    waiting = [asyncio.create_task(cache.caller(key)) for _ in range(20)]
    await until(lambda: lookups.count)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    lookups.answered.set()
    assert {caller.tenant for caller in await asyncio.gather(*waiting[1:])} == {"acme"}
    assert lookups.count == 1


async def test_an_answer_that_took_seconds_does_not_count(cache: KeyCache, lookups: Lookups, clock: Clock) -> None:
    _, key = await lookups.create("acme", "ci")

    def pass_time() -> None:
        clock.now += 3

    lookups.delay = pass_time
    with pytest.raises(ServerUnavailable):
        await cache.caller(key)


async def test_memory_is_bounded_and_unknown_ids_drive_no_key_out(
    cache: KeyCache, lookups: Lookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "MOST_KEYS", 4)
    monkeypatch.setattr(cache_module, "MOST_UNKNOWN", 3)
    assert (MOST_KEYS, MOST_UNKNOWN) > (4, 3)
    keys = [(await lookups.create("acme", f"n{n}"))[1] for n in range(5)]
    for key in keys[:4]:
        await cache.caller(key)
    for _ in range(8):
        await refusal(cache, KeyText.new(new_id(KEY_ID)))
    before = lookups.count
    for key in keys[:4]:
        await cache.caller(key)
    assert lookups.count == before
    await cache.caller(keys[4])
    assert (len(cache._keys), len(cache._unknown)) == (4, 3)


async def test_use_is_noted_by_a_gateway_once_a_minute(
    cache: KeyCache, lookups: Lookups, clock: Clock, redis_sync: redis.Redis
) -> None:
    made, key = await lookups.create("acme", "ci", scopes=frozenset({Scope.USAGE}))
    name = KEYS.api_key(made.id)
    caller = await cache.caller(key)
    assert caller.may(Scope.USAGE)
    assert not caller.may(Scope.JOBS_READ)
    await until(lambda: redis_sync.hexists(name, "used"))
    redis_sync.hdel(name, "used")
    for _ in range(3):
        clock.now += KNOWN_S
        await cache.caller(key)
    clock.now += 60
    assert not redis_sync.hexists(name, "used")
    await cache.caller(key)
    await until(lambda: redis_sync.hexists(name, "used"))
