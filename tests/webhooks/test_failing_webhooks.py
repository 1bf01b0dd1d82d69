"""Endpoints that fail, as operators see them: of all tenants, without secrets, and what is sent again."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from couriers import delivering
from receivers import Receiver
from scripted_worker import MODEL, ScriptedWorker
from waiting import until
from webhook_bench import HOOK_KEYS, HOOKS, HookBench

from octavo.client.webhooks import WebhookClient
from octavo.queue.webhooks.failing import address_of, list_failing
from octavo.terms.fleet import FailingEndpoint

THEIRS = {"Authorization": "Bearer k2"}
HOUR_MS = 3_600_000


async def failing(url: str, limit: int = 50) -> list[FailingEndpoint]:
    async with WebhookClient(url) as client:
        return await list_failing(client.redis, client.keys, limit)


async def test_endpoints_are_listed_from_their_first_failure_until_all_goes_well(redis_url: str) -> None:
    bench = HookBench(redis_url)
    endpoint, well = bench.endpoint("acme"), bench.endpoint("zoo")
    for tenant in ("acme", "acme", "zoo"):
        bench.event(tenant)
    assert await failing(redis_url) == [], "nothing was tried yet"
    tries = bench.claim()
    for tried in tries:
        if tried.endpoint_id == well:
            bench.run(HOOKS.commit(tried, "ok"))
    first, second = [tried for tried in tries if tried.endpoint_id == endpoint]
    bench.run(HOOKS.commit(first, "again", pause_ms=HOUR_MS, answer="503"))
    (shown,) = await failing(redis_url)
    assert (shown.id, shown.tenant, shown.name, shown.address) == (endpoint, "acme", "n", "https://example.com")
    assert (shown.failed, shown.waiting, shown.last_answer) == (0, 2, "503")
    assert shown.next_try_at == pytest.approx(shown.failed_at + 3600, abs=1)
    bench.run(HOOKS.commit(second, "ok"))
    assert [one.waiting for one in await failing(redis_url)] == [1], "one is still tried again"
    bench.come_due()
    (again,) = bench.claim()
    bench.run(HOOKS.commit(again, "failed", answer="timeout"))
    (shown,) = await failing(redis_url)
    assert (shown.failed, shown.waiting, shown.last_answer, shown.next_try_at) == (1, 0, "timeout", None)
    assert bench.run(HOOKS.resend(endpoint, "acme")) == 1
    assert await failing(redis_url) == []
    (again,) = bench.claim()
    bench.run(HOOKS.commit(again, "again", answer="500"))
    bench.come_due()
    (again,) = bench.claim()
    bench.run(HOOKS.commit(again, "ok"))
    assert await failing(redis_url) == []
    assert not bench.redis.exists(HOOK_KEYS.failing)


async def test_the_latest_failure_stands_first_and_what_is_gone_is_not_listed(redis_url: str) -> None:
    bench = HookBench(redis_url)
    endpoints = [bench.endpoint(tenant) for tenant in ("a", "b", "c")]
    for tenant in ("c", "a", "b"):
        bench.event(tenant)
        (tried,) = bench.claim()
        bench.run(HOOKS.commit(tried, "failed", answer="500"))
        for name, at in bench.redis.zrange(HOOK_KEYS.failing, 0, -1, withscores=True):
            bench.redis.zadd(HOOK_KEYS.failing, {name: at - 1000})
    assert [one.tenant for one in await failing(redis_url)] == ["b", "a", "c"]
    assert [one.tenant for one in await failing(redis_url, 2)] == ["b", "a"]
    assert bench.run(HOOKS.drop(endpoints[0], "a")) == 0
    assert [one.tenant for one in await failing(redis_url)] == ["b", "c"]
    assert bench.redis.zscore(HOOK_KEYS.failing, endpoints[0]) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:secret@example.com:8443/T0/B0/token?key=1", "https://example.com:8443"),
        ("http://[::1]:80/x", "http://[::1]:80"),
        ("https://[", ""),
    ],
)
def test_of_an_address_its_host_alone_is_shown(url: str, shown: str) -> None:
    assert address_of(url) == shown


async def made(http: httpx.AsyncClient, receiver: Receiver, path: str) -> str:
    asked = {"name": "nightly", "url": receiver.url(path), "event_types": ["job.completed"]}
    answer = await http.post("/v1/webhook_endpoints", json=asked, headers=THEIRS)
    return str(answer.raise_for_status().json()["id"])


async def give_up(http: httpx.AsyncClient, redis_url: str) -> str:
    """A job of the other tenant, of which no receiver has heard. Its id."""
    async with ScriptedWorker(redis_url), delivering(redis_url, pauses_s=()):

        async def is_known() -> bool:
            return bool((await http.get("/v1/models")).json()["data"])

        async def is_listed() -> bool:
            return bool((await stats(http)) and (await stats(http))[0]["failed"])

        await until(is_known)
        job = await http.post("/v1/jobs", json={"model": MODEL, "prompt": "p", "notify": True}, headers=THEIRS)
        await until(is_listed)
        return str(job.json()["id"])


async def stats(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("/v1/stats")).json()["webhooks"]
    return found


async def test_operators_see_what_failed_of_any_tenant_and_send_it_again(
    http: httpx.AsyncClient, receiver: Receiver, redis_url: str
) -> None:
    endpoint = await made(http, receiver, "/500/secret-path")
    job = await give_up(http, redis_url)
    (shown,) = await stats(http)
    assert (shown["id"], shown["tenant"], shown["name"], shown["last_answer"]) == (endpoint, "zoo", "nightly", "500")
    path = f"/v1/fleet/webhooks/{endpoint}"
    listed = await http.get(path)
    (one,) = listed.json()["data"]
    assert (one["event_id"], one["of"], one["status"], one["tries"]) == (f"evt_{job}", job, "failed", 1)
    for text in (listed.text, str(shown)):
        assert "secret" not in text
    changed = {"url": receiver.url("/200")}
    await http.post(f"/v1/webhook_endpoints/{endpoint}", json=changed, headers=THEIRS)
    assert (await http.post(f"{path}/resend", json={"event_id": "evt_x"})).json()["resent"] == 0
    assert (await http.post(f"{path}/resend", json={"event_id": one["event_id"]})).json()["resent"] == 1
    async with delivering(redis_url):
        await until(lambda: receiver.ids("/200"))
    assert receiver.ids("/200") == [f"evt_{job}"]


async def test_others_foreign_pages_and_wrong_ids_are_refused(
    http: httpx.AsyncClient, receiver: Receiver, redis_url: str
) -> None:
    endpoint = await made(http, receiver, "/410")
    await give_up(http, redis_url)
    path = f"/v1/fleet/webhooks/{endpoint}"
    for reply in (await http.get(path, headers=THEIRS), await http.post(f"{path}/resend", json={}, headers=THEIRS)):
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "not_an_operator")
    page = await http.post(f"{path}/resend", json={}, headers={"Sec-Fetch-Site": "same-origin"})
    assert (page.status_code, page.json()["error"]["code"]) == (403, "not_the_page")
    off = await http.post(f"{path}/resend", json={})
    assert (off.status_code, off.json()["error"]["code"]) == (409, "webhook_endpoint_disabled")
    assert (await stats(http))[0]["disabled_at"] is not None
    for wrong in (await http.get(f"{path}x"), await http.post(f"{path}x/resend", json={})):
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (404, "webhook_endpoint_not_found")
