"""Read tokens: a browser reads one job with one, and nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_process import GatewayProcess
from scripted_worker import MODEL, ScriptedWorker, whole_text
from sse import ServerEvent, read_events
from waiting import STALL_S, until

from octavo import AsyncClient, Client, JobNotFound
from octavo.terms.access.secret import Secret
from octavo.terms.errors import InvalidRequest, NoSecret

SECRET, OTHER = "a secret of the tests, long enough for one", "another secret of the tests, long enough too"
KEYS = "acme:a-key,globex:g-key"
PAGE = {"Origin": "https://page.example"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(api_keys=KEYS, secret=SECRET, keep_alive=0.2)


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as client:
        yield client


async def submitted(http: httpx.AsyncClient, key: str = "a-key", **fields: Any) -> str:
    job = await http.post("/v1/jobs", json={"model": MODEL, "prompt": "x", **fields}, headers=bearer(key))
    assert job.status_code == 202, job.text
    return f"/v1/jobs/{job.json()['id']}"


async def events_of(reply: httpx.Response) -> list[ServerEvent]:
    return [event async for event in read_events(reply)]


async def texts_of(reply: httpx.Response) -> list[str]:
    return [event.data["text"] for event in await events_of(reply) if event.event == "token"]


async def token_for(http: httpx.AsyncClient, job: str, key: str = "a-key", **body: Any) -> dict[str, Any]:
    made = await http.post(f"{job}/token", headers=bearer(key), json=body or None)
    assert made.status_code == 200, made.text
    assert made.headers["cache-control"] == "no-store"
    return made.json()


async def test_a_page_reads_and_resumes_one_job_with_its_token(http: httpx.AsyncClient, redis_url: str) -> None:
    async with ScriptedWorker(redis_url):
        job = await submitted(http, sampling={"max_tokens": 5})
        made = await token_for(http, job)
        assert made["links"] == {name: f"{job}/{name}?token={made['token']}" for name in ("stream", "log")}
        assert 3500 < made["expires_at"] - time.time() <= 3600
        whole = await http.get(made["links"]["stream"], headers=PAGE)
        assert whole.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in whole.headers
        texts = await texts_of(whole)
        assert "".join(texts) == whole_text(5)
        rest = await http.get(made["links"]["stream"], headers={**PAGE, "Last-Event-ID": "3"})
        assert "".join(await texts_of(rest)) == "".join(texts)[len("".join(texts[:3])) :]
        assert (await http.get(made["links"]["stream"], headers={"Last-Event-ID": "5-1"})).status_code == 204
        log = await http.get(made["links"]["log"], headers=PAGE)
        assert "".join(message.get("text", "") for message in log.json()) == whole_text(5)
        assert {"stream-next-offset", "stream-closed"} <= set(
            log.headers["access-control-expose-headers"].lower().split(", ")
        )
        for link in made["links"].values():
            assert (await http.head(link, headers={"Origin": "null"})).status_code == 200


async def test_a_preflight_for_a_read_with_a_token_is_answered_for_reads_alone(http: httpx.AsyncClient) -> None:
    """`fetch` with `Last-Event-ID` asks first."""
    job = "/v1/jobs/g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"
    asked = {**PAGE, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "last-event-id"}
    found = await http.options(f"{job}/stream?token=x", headers=asked)
    assert (found.status_code, found.headers["access-control-allow-origin"]) == (200, "*")
    assert found.headers["access-control-allow-methods"] == "GET, HEAD"
    for method, path in (("DELETE", f"{job}/stream?token=x"), ("GET", f"{job}/stream"), ("GET", f"{job}?token=x")):
        refused = await http.options(path, headers={**asked, "Access-Control-Request-Method": method})
        assert refused.status_code == 400, (method, path)


async def test_a_token_opens_nothing_else(http: httpx.AsyncClient, redis_url: str) -> None:
    async with ScriptedWorker(redis_url):
        job, other, foreign = [await submitted(http, key) for key in ("a-key", "a-key", "g-key")]
        token = (await token_for(http, job))["token"]
        for path in (other, foreign):
            for part in ("stream", "log"):
                reply = await http.get(f"{path}/{part}", params={"token": token})
                assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_read_token")
        closed = [
            *(("GET", job), ("GET", f"{job}/result"), ("DELETE", job), ("POST", f"{job}/token"), ("GET", "/v1/jobs")),
            *(("GET", "/v1/models"), ("GET", "/v1/workers"), ("GET", "/metrics"), ("POST", "/v1/jobs")),
            *(("POST", f"{job}/stream"), ("DELETE", f"{job}/stream"), ("GET", f"{job}/stream/"), ("PUT", f"{job}/log")),
        ]
        for method, path in closed:
            reply = await http.request(method, path, params={"token": token})
            assert reply.status_code in (401, 405, 307), (method, path)
            assert reply.status_code != 307 or "access-control-allow-origin" not in reply.headers
        for method in ("POST", "DELETE", "PUT"):
            assert (await http.request(method, f"{job}/stream?token={token}", headers=PAGE)).status_code == 403
        assert (await http.get(f"{job}/stream", headers=bearer(token))).status_code == 401
        assert (await http.post("/v1/jobs", params={"token": token}, headers=PAGE)).status_code == 403


async def test_a_token_alone_decides_where_there_is_one(http: httpx.AsyncClient, redis_url: str) -> None:
    """Otherwise a page with any text for a token would read with the key that its browser knows."""
    async with ScriptedWorker(redis_url):
        job = await submitted(http)
        token = (await token_for(http, job))["token"]
        for query in (f"token={token}x", "token=", "token", f"token={token}&token={token}", "token=x&after=1"):
            for headers in (bearer("a-key"), {**PAGE, **bearer("a-key")}, PAGE):
                for part in ("stream", "log"):
                    reply = await http.get(f"{job}/{part}?{query}", headers=headers)
                    assert reply.status_code in (401, 403), (query, headers, part)
        told = await http.get(f"{job}/stream?token=x", headers=PAGE)  # the page may read why
        assert told.headers["access-control-allow-origin"] == "*"


async def test_a_gateway_without_keys_checks_tokens_all_the_same(
    own_gateway: Callable[..., str], redis_url: str
) -> None:
    url = own_gateway(secret=SECRET)
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        job = await submitted(http, sampling={"max_tokens": 2})
        token = (await token_for(http, job))["token"]
        assert (await http.get(f"{job}/stream", params={"token": token}, headers=PAGE)).status_code == 200
        for wrong in ("x", token[:-1]):
            assert (await http.get(f"{job}/stream", params={"token": wrong}, headers=PAGE)).status_code == 401
        assert (await http.get(f"{job}/stream", headers=PAGE)).status_code == 403
        rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
        assert (await http.get(f"{job}/stream", params={"token": token}, headers=rebound)).status_code == 403


async def test_a_token_is_for_the_tenant_of_its_job_to_give(http: httpx.AsyncClient, redis_url: str) -> None:
    async with ScriptedWorker(redis_url):
        job = await submitted(http)
        assert (await http.post(f"{job}/token", headers=bearer("g-key"))).json()["error"]["code"] == "job_not_found"
        assert (await http.post(f"{job}/token")).status_code == 401
        assert (await http.post("/v1/jobs/g00_nothing/token", headers=bearer("a-key"))).status_code == 404


@pytest.mark.parametrize("body", [{"seconds": 0}, {"seconds": -1}, {"seconds": "60"}, {"seconds": 1.5}, {"minutes": 1}])
async def test_a_wrong_lifetime_is_refused(http: httpx.AsyncClient, redis_url: str, body: dict[str, Any]) -> None:
    async with ScriptedWorker(redis_url):
        reply = await http.post(f"{await submitted(http)}/token", headers=bearer("a-key"), json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, next(iter(body)))


async def test_a_token_lasts_no_longer_than_its_job_is_kept(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(api_keys=KEYS, secret=SECRET, result_ttl=100)
    async with ScriptedWorker(redis_url) as worker, httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        job = await submitted(http)
        await until(lambda: bool(worker.seen))
        finished = (await http.get(f"{job}/result", headers=bearer("a-key"))).status_code == 200
        made = await token_for(http, job, seconds=100_000)
        assert made["expires_at"] <= time.time() + 100, finished
        assert made["expires_at"] > time.time() + 50


async def test_an_expired_token_reads_nothing(url: str, http: httpx.AsyncClient, redis_url: str) -> None:
    """An open stream ends with it: the browser comes back, is refused, and its page asks for another one."""
    async with ScriptedWorker(redis_url, hold_after=1) as worker:
        job = await submitted(http, sampling={"max_tokens": 4})
        link = (await token_for(http, job, seconds=1))["links"]["stream"]
        await until(lambda: bool(worker.seen))
        cut = await http.get(link, headers=PAGE)
        if cut.status_code == 200:
            assert not {"done", "error"} & {event.event for event in await events_of(cut)}
        while (refused := await http.get(link, headers=PAGE)).status_code != 401:
            pass
        assert refused.json()["error"]["code"] == "read_token_expired"
        worker.go.set()


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_token_of_an_erased_job_reads_nothing(http: httpx.AsyncClient, redis_url: str, is_over: bool) -> None:
    async with (
        ScriptedWorker(redis_url, hold_after=None if is_over else 1) as worker,
        AsyncClient(redis_url, secret=Secret([SECRET])) as client,
    ):
        job = await submitted(http)
        links = (await token_for(http, job))["links"]
        handle = client.job(job.rpartition("/")[2])
        if is_over:
            await handle.result()
        else:
            await until(lambda: bool(worker.seen))
        await client.erase(handle.id)
        for link in links.values():
            assert (await http.get(link)).status_code == 404
        with pytest.raises(JobNotFound):
            await handle.read_token()
        assert (await http.post(f"{job}/token", headers=bearer("a-key"))).status_code == 404
        worker.go.set()


async def test_a_gateway_without_a_secret_says_what_to_set(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(api_keys=KEYS)
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        job = await submitted(http)
        for reply in (
            await http.post(f"{job}/token", headers=bearer("a-key")),
            await http.get(f"{job}/stream?token=1.x", headers=PAGE),
        ):
            assert (reply.status_code, reply.json()["error"]["code"]) == (501, "no_secret")
            assert "OCTAVO_SECRET" in reply.json()["error"]["message"]
            assert reply.headers["x-should-retry"] == "false"


async def test_a_token_of_a_client_is_good_at_any_gateway_of_its_secret(
    own_gateway: Callable[..., str], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of client sign by themselves: a service needs no gateway for it."""
    monkeypatch.setenv("OCTAVO_SECRET", f"{SECRET}\n{OTHER}")
    changing, old = (own_gateway(api_keys=KEYS, secret=secret) for secret in (f"{OTHER}\n{SECRET}", OTHER))
    async with ScriptedWorker(redis_url), AsyncClient(redis_url, tenant="acme") as client:
        job = await client.submit("x", model=MODEL, max_tokens=3)
        await job.result()
        with Client(redis_url) as blocking:
            tokens = [await job.read_token(60), await asyncio.to_thread(blocking.job(job.id).read_token)]
        async with httpx.AsyncClient(timeout=STALL_S) as http:
            for token in tokens:
                found = await http.get(f"{changing}/v1/jobs/{job.id}/log", params={"token": token})
                assert "".join(message.get("text", "") for message in found.json()) == whole_text(3)
                refused = await http.get(f"{old}/v1/jobs/{job.id}/log", params={"token": token})
                assert refused.status_code == 401
        with pytest.raises(InvalidRequest, match="seconds"):
            await job.read_token(0)
        monkeypatch.delenv("OCTAVO_SECRET")
        with pytest.raises(NoSecret, match="OCTAVO_SECRET"):
            await job.read_token()


async def test_no_token_is_logged(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any level, by any library, whether it is taken or not."""
    monkeypatch.setenv("OCTAVO_SECRET", SECRET)
    log = tmp_path / "log"
    with GatewayProcess(redis_url, log, "--log-level", "debug", "--log-format", "json") as process:
        async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=await process.url(), timeout=STALL_S) as http:
            job = await submitted(http)
            made = await token_for(http, job)
            bodies = []
            for part in ("stream", "log", "result", "nothing", "stream/"):
                for query in (
                    f"token={made['token']}",
                    f"token={made['token']}&after=-5&offset=x",
                    f"token={made['token']}x",
                ):
                    reply = await http.get(f"{job}/{part}?{query}", headers=PAGE)
                    bodies.append(reply.text)
        await process.stop()
    assert made["token"] not in "".join(bodies)
    said = log.read_text()
    assert f"{job}/stream" in said
    assert made["token"] not in said
    assert made["token"].partition(".")[2] not in said
