"""Pages of other origins, and names that point at a gateway."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker

JOB = {"model": MODEL, "prompt": "x"}


async def submit(url: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url) as http:
        return await http.post("/v1/jobs", json=JOB, headers=headers)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("keys", [None, "acme:a-key"])
async def test_a_page_of_another_origin_submits_nothing(
    own_gateway: Callable[..., str], redis_url: str, origin: str, keys: str | None
) -> None:
    url = own_gateway(api_keys=keys)
    async with ScriptedWorker(redis_url) as worker:
        reply = await submit(url, Origin=origin, Authorization="Bearer a-key")
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in reply.headers
        assert worker.seen == []
        assert (await submit(url, Origin=url, Authorization="Bearer a-key")).status_code == 202


async def test_configured_origins_are_told_that_they_may(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(cors_origins="https://app.example, https://other.example", api_keys="acme:a-key")
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url) as http:
        preflight = await http.options(
            "/v1/jobs", headers={**asked, "Access-Control-Request-Headers": "authorization,content-type"}
        )
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        reply = await submit(url, Origin="https://app.example", Authorization="Bearer a-key")
        assert reply.status_code == 202
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        refused = await submit(url, Origin="https://app.example")  # the page may read why
        assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (401, True)
        assert (await submit(url, Origin="https://evil.example", Authorization="Bearer a-key")).status_code == 403


async def test_all_origins_may_be_admitted(own_gateway: Callable[..., str], redis_url: str) -> None:
    url = own_gateway(cors_origins="*")
    async with ScriptedWorker(redis_url):
        assert (await submit(url, Origin="https://any.example")).status_code == 202


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example.", 403),
        ("localhost:8000", 202),
        ("octavo.localhost", 202),
        ("10.1.2.3:8000", 202),
        ("[::1]:8000", 202),
        ("gateway:8000", 202),
        ("api.corp.example", 202),
        ("[", 403),
    ],
)
async def test_names_that_a_stranger_can_make_point_here_need_a_key(
    own_gateway: Callable[..., str], redis_url: str, host: str, status: int
) -> None:
    async with ScriptedWorker(redis_url):
        url = own_gateway(allowed_hosts="api.corp.example")
        assert (await submit(url, Host=host)).status_code == status
        with_keys = own_gateway(api_keys="acme:a-key")
        assert (await submit(with_keys, Host=host, Authorization="Bearer a-key")).status_code == 202


@pytest.mark.parametrize(
    ("host", "keys", "warned"), [("0.0.0.0", None, True), ("0.0.0.0", "acme:a-key", False), ("127.0.0.1", None, False)]
)
def test_a_gateway_that_is_open_to_other_hosts_says_so(
    own_gateway: Callable[..., str], caplog: pytest.LogCaptureFixture, host: str, keys: str | None, warned: bool
) -> None:
    own_gateway(host=host, api_keys=keys)
    assert ("no API keys" in caplog.text) == warned
