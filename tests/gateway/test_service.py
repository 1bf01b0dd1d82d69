"""The gateway as a service: keys, health, metrics, documentation, logs, and a server that goes away."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import httpx
import openai
import pytest
import redis
from exposition import sample
from killable_server import forgotten_by, killable_server
from scripted_worker import MODEL, ScriptedWorker, whole_text
from sse import read_events
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.queue.connection import connect
from octavo.queue.keys import Keys
from octavo_gateway.auth import Keyring

HELLO_JOB = {"model": MODEL, "prompt": "hello"}
HELLO = {**HELLO_JOB, "max_tokens": 3}


# Keys


async def test_keys_say_who_somebody_is(own_gateway, redis_url, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# partners\n globex : g-ké\n", encoding="utf-8")
    url = own_gateway(api_keys="acme:a-key, acme: a-second", api_keys_file=file)
    async with ScriptedWorker(redis_url) as worker, httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:

        def ask(method: str, path: str, key: str, **request):
            return http.request(method, path, headers={"Authorization": f"Bearer {key}".encode()}, **request)

        job = (await ask("POST", "/v1/jobs", "a-key", json={"model": MODEL, "prompt": "x"})).json()
        assert job["tenant"] == "acme"
        for path in (job["links"]["self"], job["links"]["result"], job["links"]["stream"]):
            assert (await ask("GET", path, "a-second")).status_code in (200, 202)
            assert (await ask("GET", path, "g-ké")).status_code == 404
        assert (await ask("DELETE", job["links"]["self"], "g-ké")).status_code == 404
        assert len((await ask("GET", "/v1/jobs", "a-key")).json()["data"]) == 1
        assert (await ask("GET", "/v1/jobs", "g-ké")).json()["data"] == []
        assert (await ask("POST", "/v1/completions", "g-ké", json=HELLO)).status_code == 200
        assert worker.tenants == ["acme", "globex"]
        for path in ("/livez", "/readyz", "/"):
            assert (await http.get(path)).status_code == 200


@pytest.mark.parametrize("key", ["wrong", "acme:a-key", "a-ke", "a-key2", "é"])
async def test_a_wrong_key_is_401(own_gateway, worker, key):
    url = own_gateway(api_keys="acme:a-key")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        for path in ("/v1/models", "/v1/jobs", "/v1/jobs/g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"):
            reply = await http.get(path, headers={"Authorization": f"Bearer {key}".encode()})
            assert reply.status_code == 401
            assert reply.json()["error"]["code"] == "invalid_api_key"
            assert (await http.get(path)).json()["error"]["code"] == "missing_api_key"
        reply = await http.post("/v1/completions", json=HELLO)
        assert reply.status_code == 401
    if key.isascii():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as ai:
            with pytest.raises(openai.AuthenticationError):
                await ai.completions.create(**HELLO)
    assert worker.seen == []


@pytest.mark.parametrize("text", ["sk-mysecret", "sk-mysecret:", ":sk-mysecret", "ten ant:sk-mysecret"])
def test_malformed_keys_are_refused_by_their_place_and_never_repeated(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(f"# partners\n\nacme:a-key\n{text}\n")
    with pytest.raises(ValueError, match="pair 2 of OCTAVO_API_KEYS is not written tenant:key") as listed:
        Keyring.load(f"acme:a-key, {text}", None)
    with pytest.raises(ValueError, match=r"line 4 of .*keys is not written tenant:key") as in_file:
        Keyring.load(None, file)
    with pytest.raises(ValueError, match="names no file") as misplaced:
        Keyring.load(None, tmp_path / text)
    assert not [found for found in (listed, in_file, misplaced) if "mysecret" in str(found.value)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_key_file_may_have_a_byte_order_mark(tmp_path, encoding):
    file = tmp_path / "keys"
    file.write_bytes("acme:a-ké\r\nglobex:g-key".encode(encoding))
    keyring = Keyring.load(None, file)
    assert keyring.find("a-ké".encode()).tenant == "acme"
    assert keyring.find(b"g-key").tenant == "globex"


def test_a_key_file_that_is_no_text_is_refused_without_its_words(tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(b"acme:sk-mysecret\xff")
    with pytest.raises(ValueError, match=r"keys is not UTF-8 text \(byte 16\): save it as UTF-8") as caught:
        Keyring.load(None, file)
    assert "mysecret" not in str(caught.value)


def test_a_file_that_lost_its_keys_lets_nobody_in(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# partners\n\n")
    for pairs in (None, "acme:a-key"):
        with pytest.raises(ValueError, match="keys has no API keys"):
            Keyring.load(pairs, file)


# Health, metrics, pages


async def test_ready_once_a_model_is_known(http, redis_url):
    assert (await http.get("/livez")).json() == {"status": "ok"}
    reply = await http.get("/readyz")
    assert (reply.status_code, reply.json()["status"]) == (503, "unready")
    assert "octavo worker" in reply.json()["reason"]
    async with ScriptedWorker(redis_url):
        assert (await http.get("/readyz")).json() == {"status": "ready"}
        for path in ("/livez", "/readyz"):
            assert (await http.head(path)).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_other_names_of_ready(http, redis_url, path):
    assert (await http.get(path)).status_code == 503
    async with ScriptedWorker(redis_url):
        assert (await http.get(path)).json() == {"status": "ready"}
        assert (await http.head(path)).status_code == 200


async def test_the_version_is_the_package_s(http):
    assert (await http.get("/version")).json() == {"version": version("octavo")}


async def test_metrics_count_what_happened(http, ai, redis_url):
    before = (await http.get("/metrics")).text
    async with ScriptedWorker(redis_url, hold_after=2) as worker:
        stream = await ai.completions.create(**HELLO, stream=True)
        await http.post("/v1/completions", json={"model": "absent", "prompt": "x"})
        assert sample((await http.get("/metrics")).text, "octavo_sse_connections") == 1
        worker.go.set()
        assert "".join([chunk.choices[0].text async for chunk in stream]) == whole_text(3)
        after = (await http.get("/metrics")).text

    def grown(name: str, **labels: str) -> float:
        return sample(after, name, **labels) - sample(before, name, **labels)

    assert grown("octavo_http_requests_total", route="/v1/completions", status="404") == 1
    assert grown("octavo_jobs_submitted_total", model_name=MODEL) == 1
    assert grown("octavo_http_time_to_first_token_seconds_count", model_name=MODEL) == 1
    assert grown("octavo_http_inter_token_latency_seconds_count", model_name=MODEL) == 2
    assert grown("octavo_http_e2e_request_latency_seconds_count", model_name=MODEL) == 1
    assert grown("octavo_http_request_success_total", finished_reason="length") == 1
    assert sample(after, "octavo_server_up") == 1
    assert sample(after, "octavo_workers", model_name=MODEL) == 1
    assert "octavo_kv_blocks" not in after  # workers serve their own
    assert grown("octavo_script_call_seconds_count", script="enqueue", outcome="ok") >= 1
    assert grown("octavo_script_call_seconds_count", script="enqueue", outcome="refused") >= 1


async def test_queue_depth(http, redis_url):
    async with ScriptedWorker(redis_url):
        pass
    for _ in range(3):
        await http.post("/v1/jobs", json={"model": MODEL, "prompt": "x"})
    assert sample((await http.get("/metrics")).text, "octavo_queue_depth", model_name=MODEL) == 3


async def test_metrics_have_bounded_labels(http):
    for name in range(3):
        await http.get(f"/v1/jobs/nothing{name}")
        await http.get(f"/nowhere/{name}")
        await http.post("/v1/completions", json={"model": f"invented{name}", "prompt": "x"})
    text = (await http.get("/metrics")).text
    assert "nothing" not in text
    assert "nowhere" not in text
    assert "invented" not in text


async def test_pages_need_nothing_from_elsewhere(http):
    for path in ("/", "/docs"):
        page = await http.get(path)
        assert page.status_code == 200
        links = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
        assert links
        assert not [link for link in links if link.startswith(("http:", "https:", "//"))]
        for link in links:
            if link.startswith("/static"):
                assert (await http.get(link)).status_code == 200, link


async def test_the_api_describes_itself(http):
    api = (await http.get("/openapi.json")).json()
    assert {"/v1/jobs", "/v1/jobs/{job_id}/stream", "/v1/chat/completions", "/v1/completions"} <= set(api["paths"])
    for path, operations in api["paths"].items():
        for operation in operations.values():
            assert "4XX" in operation["responses"]
            assert "422" not in operation["responses"]
            assert ("security" in operation) == path.startswith(("/v1/", "/tokenize", "/detokenize"))
    assert [scheme["scheme"] for scheme in api["components"]["securitySchemes"].values()] == ["bearer"]
    references = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(api)))
    assert (
        {"JobRequest", "ChatCompletionRequest", "CompletionRequest"} <= references <= set(api["components"]["schemas"])
    )


async def test_request_ids_come_back(http):
    assert (await http.get("/livez", headers={"X-Request-Id": "abc-1"})).headers["x-request-id"] == "abc-1"
    made = (await http.get("/livez")).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", made)
    spoilt = (await http.get("/v1/nothing", headers={"X-Request-Id": "a b\tc"})).headers["x-request-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", spoilt)


async def test_a_bug_is_a_500_in_the_same_shape(http, monkeypatch):
    async def broken(self):
        raise RuntimeError("a secret detail")

    monkeypatch.setattr(AsyncClient, "models", broken)
    reply = await http.get("/v1/models", headers={"X-Request-Id": "abc-2"})
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert reply.headers["x-request-id"] == "abc-2"
    assert "secret" not in reply.text


# A server that is not there


async def test_without_a_server_everything_says_so(own_gateway):
    url = own_gateway(redis_url="redis://:secret@127.0.0.1:1/0")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        assert (await http.get("/livez")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "secret" not in ready.text
        for path, body in (("/v1/completions", HELLO), ("/v1/jobs", {"model": MODEL, "prompt": "x"})):
            reply = await http.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "server_unavailable")
            assert reply.headers["retry-after"]
            assert "secret" not in reply.text
        assert sample((await http.get("/metrics")).text, "octavo_server_up") == 0


@pytest.mark.parametrize("redis_url", ["redis://127.0.0.1:1/0", "redis+sentinel://127.0.0.1:1/main"])
async def test_addresses_of_servers_are_not_told_to_tenants(own_gateway, redis_url, caplog):
    url = own_gateway(redis_url=redis_url, api_keys="acme:k")
    headers = {"Authorization": "Bearer k"}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S, headers=headers) as http:
        replies = [await http.get(path) for path in ("/readyz", "/v1/models", "/v1/jobs", "/v1/workers")]
        replies += [await http.post(path, json=chat) for path in ("/v1/chat/completions", "/v1/messages")]
        replies.append(await http.post("/v1/chat/completions", json={**chat, "stream": True}))
        replies.append(await http.post("/v1/responses", json={"model": MODEL, "input": "x"}))
    for reply in replies:
        assert reply.status_code == 503
        assert "127.0.0.1" not in reply.text
        assert "not available" in reply.text
    logged = [record.getMessage() for record in caplog.records if record.name == "octavo_gateway.errors"]
    assert logged
    assert all("127.0.0.1:1" in message for message in logged)


@pytest.mark.parametrize("suffix", ["result", "stream", "log"])
async def test_what_was_stored_garbled_is_no_fault_of_the_client(http, redis_url, suffix):
    keys = Keys()
    async with ScriptedWorker(redis_url), connect(redis_url) as connection:
        job = (await http.post("/v1/jobs", json={**HELLO_JOB, "sampling": {"max_tokens": 2}})).json()
        await until(lambda: _has_ended(http, job))
        await connection.set(keys.result(job["id"]), b"\xc1 garbled")
        await connection.delete(keys.stream(job["id"]))
        reply = await http.get(job["links"][suffix])
    if suffix == "stream":
        assert (reply.status_code, "malformed_message" in reply.text) == (200, True)
    else:
        assert (reply.status_code, reply.json()["error"]["code"]) == (500, "malformed_message")
        assert (reply.json()["error"]["type"], reply.headers["x-should-retry"]) == ("server_error", "false")


async def _has_ended(http: httpx.AsyncClient, job: dict) -> bool:
    return (await http.get(job["links"]["self"])).json()["status"] == "completed"


async def test_bytes_of_the_client_that_are_no_message_are_its_own_fault(http):
    reply = await http.post("/v1/jobs", content=b"\xc1", headers={"Content-Type": "application/msgpack"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "malformed_message")


async def test_a_server_that_restarts_loses_nothing(own_gateway, tmp_path):
    with killable_server(tmp_path) as server, redis.Redis.from_url(server.url) as connection:
        url = own_gateway(redis_url=server.url)
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            async with ScriptedWorker(server.url):
                pass
            job = (await http.post("/v1/jobs", json={**HELLO_JOB, "sampling": {"max_tokens": 4}})).json()
            reading = asyncio.create_task(_texts(http, job["links"]["stream"]))
            await until(lambda: connection.hget(Keys().job(job["id"]), "gw"))  # the gateway is following it
            server.kill()
            assert (await http.post("/v1/jobs", json=HELLO_JOB)).status_code == 503
            server.start()
            async with ScriptedWorker(server.url):
                assert await asyncio.wait_for(reading, STALL_S) == whole_text(4)


async def test_a_refusal_does_not_end_the_reaping(own_gateway, redis_url):
    own_gateway()
    reaper = f"{Keys().prefix}:reaper"
    async with connect(redis_url) as connection:

        async def last() -> int:
            return int(await connection.hget(reaper, "at") or 0)

        await until(last)
        await connection.config_set("min-replicas-to-write", 1)
        await asyncio.sleep(2)
        await connection.config_set("min-replicas-to-write", 0)
        before = await last()
        await until(lambda: _is_later(last, before))


async def _is_later(when: Callable[[], Awaitable[int]], before: int) -> bool:
    return await when() > before


async def test_a_server_that_forgets_a_job_hears_of_it_again(own_gateway, tmp_path):
    with killable_server(tmp_path) as server:
        url = own_gateway(redis_url=server.url)
        async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
            async with ScriptedWorker(server.url):
                pass
            with forgotten_by(server, tmp_path):
                reply = await http.post("/v1/jobs", json={**HELLO_JOB, "sampling": {"max_tokens": 4}})
                assert reply.status_code == 202
            async with ScriptedWorker(server.url):
                assert await asyncio.wait_for(_texts(http, reply.json()["links"]["stream"]), STALL_S) == whole_text(4)


async def _texts(http: httpx.AsyncClient, path: str) -> str:
    async with http.stream("GET", path) as response:
        return "".join([event.data["text"] async for event in read_events(response) if event.event == "token"])


async def test_workers_and_their_memory(http, redis_url):
    assert (await http.get("/v1/workers")).json() == {"object": "list", "data": []}
    async with ScriptedWorker(redis_url) as worker:
        (found,) = (await http.get("/v1/workers")).json()["data"]
        assert (found["id"], found["model"], found["stats"]["free_blocks"]) == ("scripted", MODEL, 90)
        memory = (await http.get("/v1/workers/scripted/memory")).json()
        assert memory["object"] == "worker.memory"
        assert memory["cells"] == worker.memory.cells
        assert set(memory["cells"]) <= set(memory["legend"])
    reply = await http.get("/v1/workers/nobody/memory")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "worker_not_found")
