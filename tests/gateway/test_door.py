"""Every dialect enters the queue by one door: its requests are checked, submitted and counted alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fake_worker
import httpx
import pytest
import redis.asyncio
from exposition import sample
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo.queue.keys import Keys

MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "no such type"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
PART = {"messages": [{"role": "user", "parts": [{"type": "text", "text": "hello"}]}]}

REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "job": ("/v1/jobs", {"prompt": "x"}, {"grammar": {"kind": "json_schema", "text": SCHEMA}}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 3}, {"response_format": FORMAT}),
    "completion": ("/v1/completions", {"prompt": "x"}, {"response_format": FORMAT}),
    "prompts": ("/v1/completions", {"prompt": ["x", "y"]}, {"response_format": FORMAT}),
    "response": (
        "/v1/responses",
        {"input": "hello", "max_output_tokens": 3},
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    ),
    "message": (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 3},
        {"tools": [{"name": "f", "input_schema": SCHEMA, "strict": True}]},
    ),
    "ui": ("/v1/chat", {"id": "c", **PART}, {"response_format": FORMAT}),
}
JOBS = {"prompts": 2}

pytestmark = pytest.mark.usefixtures("worker")


async def submitted(http: httpx.AsyncClient) -> float:
    return sample((await http.get("/metrics")).text, "octavo_jobs_submitted_total", model_name=MODEL)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_accepted_jobs_are_counted_once_each(http: httpx.AsyncClient, kind: str) -> None:
    path, body, _ = REQUESTS[kind]
    before = await submitted(http)
    assert (await http.post(path, json={"model": MODEL, **body})).is_success
    assert await submitted(http) - before == JOBS.get(kind, 1)


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_grammar_that_cannot_be_compiled_is_refused(http: httpx.AsyncClient, kind: str) -> None:
    path, body, grammar = REQUESTS[kind]
    before = await submitted(http)
    answer = await http.post(path, json={"model": MODEL, **body, **grammar})
    assert answer.status_code == 400, answer.text
    assert "no such type" in answer.json()["error"]["message"]
    assert await submitted(http) == before


@pytest.mark.parametrize("kind", ["job", "response", "ui"])
async def test_a_job_that_was_there_before_is_not_counted_again(http: httpx.AsyncClient, kind: str) -> None:
    path, body, _ = REQUESTS[kind]
    before = await submitted(http)
    for _ in range(2):
        answer = await http.post(path, json={"model": MODEL, **body}, headers={"Idempotency-Key": kind})
        assert answer.is_success
    assert await submitted(http) - before == 1


@pytest.mark.parametrize("kind", REQUESTS)
async def test_without_a_live_worker_nothing_is_accepted_where_jobs_do_not_wait(
    own_gateway: Callable[..., str], redis_async: redis.asyncio.Redis, worker: ScriptedWorker, kind: str
) -> None:
    """In the shape of each dialect. The model that is dead is known, and another one's worker is none of its own."""
    await fake_worker.register(redis_async, "dead")
    path, body, _ = REQUESTS[kind]
    async with httpx.AsyncClient(base_url=own_gateway(wait_for_workers=False), timeout=STALL_S) as http:
        for stream in (False, True) if kind in ("chat", "completion", "response", "message") else (False,):
            asked = {"model": "dead", **body, **({"stream": True} if stream else {})}
            refused = await http.post(path, json=asked, headers={"Idempotency-Key": f"{kind}{stream}"})
            assert refused.status_code == 503, refused.text
            assert int(refused.headers["retry-after"]) > 0
            told = refused.json()
            if kind == "message":
                assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")
            else:
                assert (told["error"]["type"], told["error"]["code"]) == ("server_error", "no_live_worker")
            assert "'dead'" in told["error"]["message"]
        assert not [key async for key in redis_async.scan_iter("*:[jti]:*")]  # jobs, streams, idempotency keys
        assert (await http.post(path, json={"model": MODEL, **body})).is_success
        await fake_worker.beat(redis_async, "w", "dead")
        accepted = await http.post("/v1/jobs", json={"model": "dead", "prompt": "x"})
        assert accepted.status_code == 202


async def test_jobs_wait_for_a_worker_by_default(http: httpx.AsyncClient, redis_async: redis.asyncio.Redis) -> None:
    await fake_worker.register(redis_async, "dead")
    assert (await http.post("/v1/jobs", json={"model": "dead", "prompt": "x"})).status_code == 202


async def test_a_repeat_is_answered_although_the_workers_are_gone(
    own_gateway: Callable[..., str], redis_async: redis.asyncio.Redis
) -> None:
    """Its job was accepted before, and may have ended."""
    await fake_worker.register(redis_async, "dead")
    await fake_worker.beat(redis_async, "w", "dead")
    async with httpx.AsyncClient(base_url=own_gateway(wait_for_workers=False), timeout=STALL_S) as http:
        asked = {"json": {"model": "dead", "prompt": "x"}, "headers": {"Idempotency-Key": "a"}}
        first = await http.post("/v1/jobs", **asked)
        assert first.status_code == 202
        await redis_async.delete(Keys().worker("w"))
        await until(lambda: refused(http, {"model": "dead", "prompt": "y"}))
        again = await http.post("/v1/jobs", **asked)
        assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        unknown = await http.post("/v1/jobs", json={"model": "never", "prompt": "x"})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_model_is_served_under_its_other_names(
    own_gateway: Callable[..., str], redis_async: redis.asyncio.Redis
) -> None:
    await fake_worker.register(redis_async, "alive", aliases=("another",))
    async with httpx.AsyncClient(base_url=own_gateway(wait_for_workers=False), timeout=STALL_S) as http:
        accepted = await http.post("/v1/jobs", json={"model": "another", "prompt": "x"})
        assert (accepted.status_code, accepted.json()["model"]) == (202, "another")
        await redis_async.delete(Keys().worker("alive-w"))
        await until(lambda: refused(http, {"model": "alive", "prompt": "x"}))


async def refused(http: httpx.AsyncClient, body: dict[str, Any]) -> bool:
    return (await http.post("/v1/jobs", json=body)).status_code == 503


async def test_models_count_their_live_workers(http: httpx.AsyncClient, redis_async: redis.asyncio.Redis) -> None:
    await fake_worker.register(redis_async, "dead")
    await fake_worker.register(redis_async, "other")
    for name, model in (("w1", MODEL), ("w2", MODEL), ("w3", "other")):
        await fake_worker.beat(redis_async, name, model)
    listed = {card["id"]: card["live_workers"] for card in (await http.get("/v1/models")).json()["data"]}
    assert listed == {MODEL: 3, "other": 1, "dead": 0}
    assert (await http.get(f"/v1/models/{MODEL}")).json()["live_workers"] == 3
