"""Limits and usage of tenants as the openai package's administration client asks for them, with an operator's key."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest
from scripted_worker import MODEL, ScriptedWorker
from serving import serving
from waiting import STALL_S, until

from octavo_gateway.settings import GatewaySettings


@pytest.fixture
def url(redis_url: str) -> Iterator[str]:
    settings = GatewaySettings(redis_url=redis_url, api_keys="acme:k1,zoo:k2,ops:k3", operators=("ops",))
    with serving(settings) as address:
        yield address


@pytest.fixture
async def worker(redis_url: str) -> AsyncIterator[ScriptedWorker]:
    async with ScriptedWorker(redis_url) as running:
        yield running


def client_of(url: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key=key, admin_api_key=key, max_retries=0, timeout=STALL_S
    )  # fmt: skip


@pytest.fixture
async def ops(url: str) -> AsyncIterator[Any]:
    """The administration part of an operator's client."""
    async with client_of(url, "k3") as client:
        yield client.admin.organization


async def test_limits_are_listed_changed_and_hold(url, ops, worker) -> None:
    page = await ops.projects.rate_limits.list_rate_limits("acme")
    assert [(one.id, one.model, one.max_requests_per_1_minute) for one in page.data] == [
        ("rl-*", "*", None),
        (f"rl-{MODEL}", MODEL, None),
    ]
    changed = await ops.projects.rate_limits.update_rate_limit(
        f"rl-{MODEL}", project_id="acme", max_requests_per_1_minute=1, max_tokens_per_1_minute=6000
    )
    assert (changed.model, changed.max_requests_per_1_minute, changed.max_tokens_per_1_minute) == (MODEL, 1, 6000)
    async with client_of(url, "k1") as acme, client_of(url, "k2") as zoo:
        await acme.completions.create(model=MODEL, prompt="hello", max_tokens=3)
        with pytest.raises(openai.RateLimitError):
            await acme.completions.create(model=MODEL, prompt="hello", max_tokens=3)
        await zoo.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    first = await ops.projects.rate_limits.list_rate_limits("acme", limit=1)
    assert (first.has_more, len(first.data)) == (True, 1)
    rest = await ops.projects.rate_limits.list_rate_limits("acme", after=first.last_id)
    assert [one.max_requests_per_1_minute for one in rest.data] == [1]


async def test_what_openai_has_no_name_for_is_under_octavo(url, worker) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer k3"}, timeout=STALL_S) as http:
        path = "/v1/organization/projects/acme/rate_limits/rl-*"
        changed = await http.post(path, json={"octavo": {"tokens_per_day": 5000, "waiting": 7}})
        assert changed.json()["octavo"] == {"tokens_per_day": 5000, "waiting": 7}
        changed = await http.post(path, json={"octavo": {"waiting": None}, "max_tokens_per_1_minute": 60})
        assert changed.json()["octavo"] == {"tokens_per_day": 5000, "tokens_per_minute": 60}
        for body, param in (
            ({"octavo": {"nope": 1}}, "nope"),
            ({"octavo": {"waiting": -1}}, "waiting"),
            ({"max_requests_per_1_day": 5}, "max_requests_per_1_day"),
        ):
            refused = await http.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        for wrong in ("rl-", "x"):
            refused = await http.post(path.replace("rl-*", wrong), json={})
            assert refused.status_code == 404
        assert (await http.get("/v1/organization/projects/a:b/rate_limits")).status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/organization/projects/acme/rate_limits"),
        ("POST", "/v1/organization/projects/acme/rate_limits/rl-*"),
    ],
)
async def test_limits_are_for_operators(url: str, method: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer k1"}, timeout=STALL_S) as http:
        refused = await http.request(method, path, json={} if method == "POST" else None)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_an_operator")


async def test_usage_is_told_by_time_tenant_model_and_batch(url, ops, worker) -> None:
    async with client_of(url, "k1") as acme, client_of(url, "k2") as zoo:
        for client in (acme, acme, zoo):
            answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 3)
    start = int(time.time()) - 60

    async def results(**asked: Any) -> list[Any]:
        page = await ops.usage.completions(start_time=start, **asked)
        return [result for bucket in page.data for result in bucket.results]

    async def is_told() -> bool:
        return sum(result.num_model_requests for result in await results()) == 3

    await until(is_told)
    for width in ("1m", "1h", "1d"):
        found = await results(bucket_width=width)
        assert sum(result.input_tokens for result in found) == 15
        assert sum(result.output_tokens for result in found) == 9
        assert {result.project_id for result in found} == {None}
    by_tenant = {}
    for result in await results(group_by=["project_id", "model", "batch", "api_key_id"]):
        by_tenant[result.project_id] = by_tenant.get(result.project_id, 0) + result.num_model_requests
        assert (result.model, result.batch, result.api_key_id) == (MODEL, False, None)
    assert by_tenant == {"acme": 2, "zoo": 1}
    assert sum(result.num_model_requests for result in await results(project_ids=["zoo"])) == 1
    async with client_of(url, "k2") as zoo:  # a tenant's key tells of its own, whatever it names
        page = await zoo.admin.organization.usage.completions(start_time=start, project_ids=["acme"])
        assert sum(result.num_model_requests for bucket in page.data for result in bucket.results) == 1
    assert await results(models=["other"]) == []
    assert await results(batch=True) == []
    assert await results(api_key_ids=["k"]) == []


async def test_usage_comes_in_pages_of_buckets(ops, worker) -> None:
    now = int(time.time())
    first = await ops.usage.completions(start_time=now - 3 * 86_400, end_time=now, limit=2)
    assert [bucket.end_time - bucket.start_time for bucket in first.data] == [86_400, 86_400]
    assert first.data[0].start_time == (now - 3 * 86_400) // 86_400 * 86_400
    assert first.has_more
    second = await ops.usage.completions(start_time=now - 3 * 86_400, end_time=now, limit=2, page=first.next_page)
    assert second.data[0].start_time == first.data[-1].end_time
    assert not second.has_more


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"start_time": 3 * 3600, "bucket_width": "1m"}, "start_time"),
        ({"start_time": 9 * 86_400, "bucket_width": "1h"}, "start_time"),
        ({"start_time": 402 * 86_400, "bucket_width": "1d"}, "start_time"),
        ({"start_time": 60, "end_time": 120}, "end_time"),
        ({"start_time": 60, "limit": 32}, "limit"),
        ({"start_time": 60, "page": "x"}, "page"),
        ({"start_time": 60, "bucket_width": "1y"}, "bucket_width"),
        ({"start_time": 60, "group_by[]": "colour"}, "group_by"),
    ],
)
async def test_what_is_not_kept_or_makes_no_sense_is_refused(url, asked: dict[str, Any], param: str) -> None:
    """Times are seconds before now."""
    query = {name: int(time.time()) - value if name.endswith("_time") else value for name, value in asked.items()}
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer k3"}, timeout=STALL_S) as http:
        refused = await http.get("/v1/organization/usage/completions", params=query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
