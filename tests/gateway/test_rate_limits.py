"""Limits of a tenant as clients of the API meet them: answers say what is left, refusals when to retry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
import redis
from buckets import level_in
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S

from octavo.queue.calls import run_sync
from octavo.queue.tenants.limits import TenantCell

BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 3}
JOB = {"model": MODEL, "prompt": "hello", "sampling": {"max_tokens": 3}}
COST = 5 // 3 + 16 + 3


@pytest.fixture
def limit(redis_sync: redis.Redis, worker: ScriptedWorker) -> Callable[..., dict[str, int]]:
    """Set limits of the tenant of requests without a key."""
    return lambda **values: run_sync(redis_sync, TenantCell().change("default", values))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", JOB),
        ("/v1/completions", BODY),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
        ("/v1/responses", {"model": MODEL, "input": "hi", "max_output_tokens": 3}),
        ("/v1/messages", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}),
    ],
)
async def test_every_dialect_says_what_is_left_and_refuses_alike(limit, http, path: str, body: dict[str, Any]) -> None:
    limit(requests_per_minute=2, requests_per_minute_capacity=1, tokens_per_minute=60_000)
    accepted = await http.post(path, json=body)
    assert accepted.is_success
    assert accepted.headers["x-ratelimit-limit-requests"] == "1"
    assert accepted.headers["x-ratelimit-remaining-requests"] == "0"
    assert accepted.headers["x-ratelimit-reset-requests"] in ("30s", "29s")
    assert accepted.headers["x-ratelimit-limit-tokens"] == "60000"
    assert 59_900 < int(accepted.headers["x-ratelimit-remaining-tokens"]) < 60_000
    assert accepted.headers["x-ratelimit-reset-tokens"].endswith("ms")
    refused = await http.post(path, json=body)
    assert refused.status_code == 429
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 25_000 < int(refused.headers["retry-after-ms"]) <= 30_000
    assert 25 < int(refused.headers["retry-after"]) <= 30
    assert "x-should-retry" not in refused.headers
    error = refused.json()["error"]
    assert error["type"] == "rate_limit_error"
    assert "requests a minute" in error["message"]
    if path != "/v1/messages":
        assert error["code"] == "rate_limit_exceeded"


async def test_without_limits_nothing_is_said_of_them(worker, http) -> None:
    assert not [name for name in (await http.post("/v1/jobs", json=JOB)).headers if "ratelimit" in name]


async def test_a_request_that_never_fits_is_not_to_be_retried(limit, http) -> None:
    limit(tokens_per_minute=COST)
    refused = await http.post("/v1/completions", json=BODY | {"max_tokens": 4})
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    assert "retry-after" not in refused.headers
    assert (await http.post("/v1/jobs", json=JOB)).status_code == 202
    limit(max_tokens=2)
    refused = await http.post("/v1/jobs", json=JOB)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "too_many_tokens")


async def test_a_suspended_tenant_is_told_so(limit, http) -> None:
    limit(suspended=1)
    refused = await http.post("/v1/jobs", json=JOB)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_suspended")


async def test_the_openai_package_waits_for_the_time_it_is_told_and_gives_up_where_told(limit, ai) -> None:
    limit(requests_per_minute=120, requests_per_minute_capacity=1)
    patient = ai.with_options(max_retries=2)
    clock = asyncio.get_running_loop().time
    began = clock()
    for _ in range(3):
        await patient.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    assert clock() - began > 0.9  # two waits of half a second, which load only makes longer
    limit(requests_per_minute=None, tokens_per_minute=COST - 1)
    seen: list[httpx.Response] = []
    async with httpx.AsyncClient(timeout=STALL_S) as raw:
        raw.event_hooks["response"] = [lambda response: _note(seen, response)]
        async with openai.AsyncOpenAI(
            base_url=str(ai.base_url), api_key="none", max_retries=2, http_client=raw
        ) as counted:
            with pytest.raises(openai.RateLimitError):
                await counted.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    assert len(seen) == 1


async def _note(seen: list[httpx.Response], response: httpx.Response) -> None:
    seen.append(response)


async def test_jobs_of_a_request_that_is_refused_in_part_give_back_what_they_were_charged(
    gateway_url: str, http: httpx.AsyncClient, redis_url: str, redis_sync: redis.Redis
) -> None:
    async with ScriptedWorker(redis_url):
        pass  # the model is known, no worker takes the jobs
    values = {"tokens_per_day": 1, "tokens_per_day_capacity": 2 * COST}
    run_sync(redis_sync, TenantCell().change("default", values))
    refused = await http.post("/v1/completions", json=BODY | {"prompt": ["hello", "hello", "hello"]})
    assert refused.status_code == 429
    level = level_in(redis_sync.hget("{c00}:bk:default", "* tokens_per_day"))
    assert level == pytest.approx(2 * COST, abs=0.01)
