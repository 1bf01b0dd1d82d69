"""Views of a tenant's key, and those of an operator's alone."""

from __future__ import annotations

import base64
from collections.abc import Callable

import httpx
import pytest
import redis
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S

from octavo import Client
from octavo.queue.keys import Keys
from octavo.terms.workers import PinOutcome
from octavo_gateway.auth import Keyring

TENANTS = {"a-key": "acme", "g-key": "globex", "o-key": "ops"}
KEYS = ",".join(f"{tenant}:{key}" for key, tenant in TENANTS.items())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=STALL_S)


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(api_keys=KEYS, operators="ops")


async def test_hosts_counters_and_pins_of_others_are_for_operators(
    url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = {f"{tenant}:pin": PinOutcome(state="pinned", version="1", tokens=16) for tenant in ("acme", "globex")}
    monkeypatch.setattr(ScriptedWorker, "pins", pins)
    async with ScriptedWorker(redis_url), client(url) as http:
        shown = (await http.get("/v1/workers", headers=bearer("a-key"))).json()["data"]
        assert [set(worker) for worker in shown] == [{"object", "id", "model", "pins"}]
        assert "scripted" not in str(shown)
        assert "globex" not in str(shown)
        assert list(shown[0]["pins"]) == ["acme:pin"]
        (whole,) = (await http.get("/v1/workers", headers=bearer("o-key"))).json()["data"]
        assert (whole["id"], whole["host"], len(whole["pins"])) == ("scripted", "here", 2)
        job = (await http.post("/v1/jobs", headers=bearer("a-key"), json={"model": MODEL, "prompt": "x"})).json()
        result = f"{job['links']['self']}"
        while (now := (await http.get(result, headers=bearer("a-key"))).json())["status"] != "completed":
            pass
        assert now["worker"] == shown[0]["id"]
        with Client(redis_url) as library:
            assert library.info(job["id"]).worker == "scripted"


@pytest.mark.parametrize("path", ["/metrics", "/v1/workers/scripted/memory"])
async def test_the_fleet_is_for_operators(url: str, redis_url: str, path: str) -> None:
    async with ScriptedWorker(redis_url), client(url) as http:
        assert (await http.get(path)).status_code == 401
        refused = await http.get(path, headers=bearer("a-key"))
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert (await http.get(path, headers=bearer("o-key"))).status_code == 200
        assert (await http.get(path, auth=("any", "o-key"))).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_the_documentation_is_for_those_with_a_key(url: str, path: str) -> None:
    async with client(url) as http:
        asked = await http.get(path)
        assert asked.status_code == 401
        assert "Basic" in asked.headers["www-authenticate"]  # a browser asks its user then
        assert (await http.get(path, auth=("", "wrong"))).status_code == 401
        assert (await http.get(path, headers={"Authorization": "Basic !!!"})).status_code == 401
        assert (await http.get(path, auth=("acme", "a-key"))).status_code == 200
        for public in ("/", "/livez", "/readyz"):
            assert (await http.get(public)).status_code in (200, 503)


OTHERS_JOB = ("GET {self}", "GET {self}/result", "GET {self}/stream", "DELETE {self}")


@pytest.mark.parametrize("endpoint", OTHERS_JOB)
@pytest.mark.parametrize("is_over", [False, True])
async def test_a_job_is_unknown_to_all_but_its_tenant(url: str, redis_url: str, endpoint: str, is_over: bool) -> None:
    method, path = endpoint.split()
    async with ScriptedWorker(redis_url, hold_after=None if is_over else 1), client(url) as http:
        job = await http.post("/v1/jobs", headers=bearer("a-key"), json={"model": MODEL, "prompt": "x"})
        link = job.json()["links"]["self"]
        while is_over and (await http.get(link, headers=bearer("a-key"))).json()["status"] != "completed":
            pass
        for key in ("g-key", "o-key"):
            strange = await http.request(method, path.format(self=link), headers=bearer(key))
            unknown = await http.request(
                method, path.format(self="/v1/jobs/g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"), headers=bearer(key)
            )
            assert (strange.status_code, unknown.status_code) == (404, 404)
            assert strange.json()["error"]["code"] == unknown.json()["error"]["code"]
        keyless = await http.request(method, path.format(self=link))
        assert keyless.status_code == 401
        own = (await http.get(link, headers=bearer("a-key"))).json()
        assert own["status"] in (("completed",) if is_over else ("queued", "running"))
        with Client(redis_url) as library:
            library.cancel(job.json()["id"])  # a stream that a stranger was let into would last for ever


async def test_each_tenant_lists_its_own_jobs_under_its_own_idempotency_keys(url: str, redis_url: str) -> None:
    async with ScriptedWorker(redis_url), client(url) as http:
        ids = {}
        for key in ("a-key", "g-key", "o-key"):
            answer = await http.post(
                "/v1/jobs",
                headers={**bearer(key), "Idempotency-Key": "the-same"},
                json={"model": MODEL, "prompt": "x"},
            )
            assert (answer.status_code, answer.json()["tenant"]) == (202, TENANTS[key])
            ids[key] = answer.json()["id"]
        for key, job_id in ids.items():
            listed = (await http.get("/v1/jobs", headers=bearer(key))).json()["data"]
            assert [job["id"] for job in listed] == [job_id]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/jobs"])
@pytest.mark.parametrize("stream", [False, True])
async def test_jobs_are_those_of_the_key_s_tenant(url: str, redis_url: str, path: str, stream: bool) -> None:
    prompt = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    if path == "/v1/completions" and not stream:
        prompt = {"prompt": ["x", "y"]}
    fields = {"stream": True} if stream and path != "/v1/jobs" else {}
    body = {"model": MODEL, **prompt, **fields}
    async with ScriptedWorker(redis_url) as worker, client(url) as http:
        for key, tenant in TENANTS.items():
            answer = await http.post(path, headers={**bearer(key), "X-Tenant": "globex"}, json=body)
            assert answer.is_success
            with Client(redis_url) as library:
                assert library.jobs()[0].tenant == tenant
        refused = await http.post(path, json=body)
        assert refused.status_code == 401
        assert len(worker.seen) <= 2 * len(TENANTS)


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/v1/jobs", "/v1/workers"])
async def test_what_is_listed_needs_a_key(url: str, redis_url: str, path: str) -> None:
    async with ScriptedWorker(redis_url), client(url) as http:
        assert (await http.get(path)).status_code == 401
        assert (await http.get(path, headers=bearer("a-key"))).status_code == 200


async def test_a_key_may_hold_a_colon(own_gateway: Callable[..., str]) -> None:
    url = own_gateway(api_keys="acme:a:key")
    basic = base64.b64encode(b"acme:a:key").decode()
    async with client(url) as http:
        assert (await http.get("/v1/models", headers={"Authorization": f"Basic {basic}"})).status_code == 200


def test_an_operator_without_a_key_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="name 2 of OCTAVO_OPERATORS has no API key"):
        Keyring.load("acme:a-key", None, ("acme", "ops"))


async def test_a_job_s_attempts_name_no_host_to_tenants(url: str, redis_url: str, redis_sync: redis.Redis) -> None:
    async with ScriptedWorker(redis_url):
        pass
    async with client(url) as http:
        job = (await http.post("/v1/jobs", headers=bearer("a-key"), json={"model": MODEL, "prompt": "x"})).json()
        redis_sync.hset(Keys().job(job["id"]), "tries", "1,0,host-7;2,1,completed")
        (attempt,) = (await http.get(job["links"]["self"], headers=bearer("a-key"))).json()["history"]
    assert attempt["worker"].startswith("worker-")
    assert (attempt["tokens"], attempt["why"]) == (1, "completed")
