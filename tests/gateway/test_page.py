"""The live page without a browser: for operators, with a strict policy; its buttons need its token; texts are their
tenants' own."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from scripted_worker import MODEL, ScriptedWorker, whole_text
from waiting import STALL_S

from octavo import AsyncClient
from octavo.service.controls import Owned, controls

KEYS = {"api_keys": "acme:a-key,ops:an-ops-key,ops2:another-ops-key", "operators": "ops,ops2"}
OPS = {"Authorization": "Bearer an-ops-key"}
STATIC = Path(__file__).parents[2] / "gateway/octavo_gateway/page/static"


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(**KEYS)


async def load(http: httpx.AsyncClient, headers: dict[str, str] = OPS) -> dict[str, Any]:
    """Settings that the page is told when it is loaded."""
    page = await http.get("/", headers=headers)
    (settings,) = re.findall(r'name="octavo" content="([^"]+)"', page.text)
    return json.loads(html.unescape(settings))


async def test_operators_get_the_page_and_others_the_one_about_the_api(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        page = await http.get("/", headers=OPS)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<script>|<style|\son\w+=|style=", page.text), "the policy lets none of it run"
        for headers in ({}, {"Authorization": "Bearer a-key"}, {"Authorization": "Bearer wrong"}):
            other = await http.get("/", headers=headers)
            assert (other.status_code, 'name="octavo"' in other.text) == (200, False)
        assert (
            (await http.get("/?operator"))
            .headers["www-authenticate"]
            .endswith('Basic realm="octavo, the key as password"')
        )
        assert (await load(http))["tenant"] == "ops"
        assert (await load(http))["token"] != (await load(http))["token"]


async def test_the_page_is_small_and_whole() -> None:
    own = [*(STATIC / "live").glob("*.js")]
    assert 0 < sum(len(path.read_text().splitlines()) for path in own) < 1500
    for path in own:
        text = path.read_text()
        for name in re.findall(r'from "([^"]+)"', text):
            assert (path.parent / name).exists(), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|dangerouslySet|https?://", text)


async def test_texts_are_shown_to_their_own_tenant_unless_all_may_be(
    own_gateway: Callable[..., str], redis_url: str
) -> None:
    own, open_ = own_gateway(**KEYS), own_gateway(**KEYS, show_content=True)
    async with ScriptedWorker(redis_url), httpx.AsyncClient(timeout=STALL_S) as http, AsyncClient(redis_url) as client:
        jobs = {}
        for tenant in ("ops", "acme"):
            jobs[tenant] = await client.submit(
                "secret", model=MODEL, max_tokens=3, tenant=tenant, metadata={"for": "me"}
            )
            await jobs[tenant].result()

        async def seen(url: str, tenant: str) -> dict[str, Any]:
            return (await http.get(f"{url}/v1/fleet/jobs/{jobs[tenant].id}", headers=OPS)).json()

        assert (await seen(own, "ops"))["texts"] == [whole_text(3)]
        others = await seen(own, "acme")
        assert (others["shows_content"], others["texts"], others["request"]) == (False, None, None)
        assert (others["job"]["tokens"], others["job"]["metadata"]) == (3, {})
        assert "secret" not in json.dumps(others)
        assert (await seen(open_, "acme"))["texts"] == [whole_text(3)]
        for key, status in (("a-key", 403), ("wrong", 401)):
            reply = await http.get(f"{own}/v1/fleet/jobs/{jobs['acme'].id}", headers={"Authorization": f"Bearer {key}"})
            assert reply.status_code == status


async def test_the_text_and_the_request_of_a_job_that_runs(own_gateway: Callable[..., str], redis_url: str) -> None:
    async with (
        ScriptedWorker(redis_url, hold_after=2),
        httpx.AsyncClient(base_url=own_gateway(), timeout=STALL_S) as http,
        AsyncClient(redis_url) as client,
    ):
        job = await client.submit("xyz", model=MODEL, max_tokens=5)
        async for event in job.stream():
            if event.offset == 2:
                break
        shown = (await http.get(f"/v1/fleet/jobs/{job.id}")).json()
        assert shown["texts"] == [whole_text(2)]
        assert shown["request"] == {"model": MODEL, "prompt": "xyz", "sampling": {"max_tokens": 5}}


async def test_given_up_jobs_go_back_with_the_token_of_the_page_alone(
    url: str, redis_url: str, redis_sync: redis.Redis
) -> None:
    async with AsyncClient(redis_url) as client, httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        async with ScriptedWorker(redis_url):
            pass
        job = await client.submit("x", model=MODEL, max_tokens=1, tenant="acme")
        redis_sync.hset(f"{{c00}}:j:{job.id}", "st", "failed")
        redis_sync.xadd("{c00}:dlq", {"id": job.id, "why": "dead_lettered", "ep": 3})
        body = {"job_ids": [job.id, "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"]}
        other = (await load(http, {"Authorization": "Bearer another-ops-key"}))["token"]
        for token in ({}, {"X-Octavo-Page": "wrong"}, {"X-Octavo-Page": other}):
            reply = await http.post("/v1/fleet/requeue", json=body, headers=OPS | token)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "not_the_page")
        assert len(await client.dead_letters()) == 1
        mine = {"X-Octavo-Page": (await load(http))["token"]}
        assert (await http.post("/v1/fleet/requeue", json=body, headers=mine)).status_code == 401
        answer = (await http.post("/v1/fleet/requeue", json=body, headers=OPS | mine)).json()
        assert answer["failed"].keys() == {"g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"}
        assert (await client.job(answer["requeued"][job.id]).info()).tenant == "acme"
        assert await client.dead_letters() == []


class Workers:
    """An owner that remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def owned(self) -> list[Owned]:
        return [Owned("worker-1", 11)]

    def add_worker(self) -> None:
        self.asked.append("add")

    def kill_worker(self, pid: int) -> None:
        if pid != 11:
            raise LookupError(pid)
        self.asked.append(("kill", pid))

    pause_worker = resume_worker = kill_worker


async def test_controls_act_on_the_workers_of_their_owner(own_gateway: Callable[..., str], tmp_path: Path) -> None:
    path, workers = tmp_path / "controls.sock", Workers()
    async with httpx.AsyncClient(base_url=own_gateway(**KEYS, controls=path), timeout=STALL_S) as http:
        headers = OPS | {"X-Octavo-Page": (await load(http))["token"]}
        assert (await load(http))["controls"]
        with controls(path, workers):
            assert path.stat().st_mode & 0o077 == 0, "for this user alone"
            listed = (await http.get("/v1/fleet/controls", headers=OPS)).json()
            assert listed["workers"] == [{"name": "worker-1", "pid": 11, "paused": False}]
            for body, status in (
                ({"action": "kill", "pid": 11}, 200),
                ({"action": "kill", "pid": 12}, 409),
                ({"action": "add"}, 200),
                ({"action": "list"}, 400),
            ):
                assert (await http.post("/v1/fleet/controls", json=body, headers=headers)).status_code == status
            assert (await http.post("/v1/fleet/controls", json={"action": "add"}, headers=OPS)).status_code == 403
        assert workers.asked == [("kill", 11), "add"]
        gone = await http.post("/v1/fleet/controls", json={"action": "add"}, headers=headers)
        assert (gone.status_code, "octavo up" in gone.json()["error"]["message"]) == (409, True)


async def test_elsewhere_there_are_no_controls(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        settings = await load(http)
        assert not settings["controls"]
        headers = OPS | {"X-Octavo-Page": settings["token"]}
        assert (await http.get("/v1/fleet/controls", headers=OPS)).status_code == 404
        assert (await http.post("/v1/fleet/controls", json={"action": "add"}, headers=headers)).status_code == 404
