"""What a tenant's key shows, and what only an operator's does."""

from __future__ import annotations

import base64
from collections.abc import Callable

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker

from octavo import Client
from octavo.models import PinOutcome
from octavo_gateway.auth import Keyring

KEYS = "acme:a-key,globex:g-key,ops:o-key"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(api_keys=KEYS, operators="ops")


async def test_hosts_counters_and_pins_of_others_are_for_operators(
    url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = {f"{tenant}:pin": PinOutcome(state="pinned", version="1", tokens=16) for tenant in ("acme", "globex")}
    monkeypatch.setattr(ScriptedWorker, "pins", pins)
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url) as http:
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
        with Client(redis_url) as client:
            assert client.info(job["id"]).worker == "scripted"


@pytest.mark.parametrize("path", ["/metrics", "/v1/workers/scripted/memory"])
async def test_the_fleet_is_for_operators(url: str, redis_url: str, path: str) -> None:
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url) as http:
        assert (await http.get(path)).status_code == 401
        refused = await http.get(path, headers=bearer("a-key"))
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
        assert (await http.get(path, headers=bearer("o-key"))).status_code == 200
        assert (await http.get(path, auth=("any", "o-key"))).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_the_documentation_is_for_those_with_a_key(url: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        asked = await http.get(path)
        assert asked.status_code == 401
        assert "Basic" in asked.headers["www-authenticate"]  # a browser asks its user then
        assert (await http.get(path, auth=("", "wrong"))).status_code == 401
        assert (await http.get(path, headers={"Authorization": "Basic !!!"})).status_code == 401
        assert (await http.get(path, auth=("acme", "a-key"))).status_code == 200
        for public in ("/", "/livez", "/readyz"):
            assert (await http.get(public)).status_code in (200, 503)


async def test_a_key_may_hold_a_colon(own_gateway: Callable[..., str]) -> None:
    url = own_gateway(api_keys="acme:a:key")
    basic = base64.b64encode(b"acme:a:key").decode()
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/v1/models", headers={"Authorization": f"Basic {basic}"})).status_code == 200


def test_an_operator_without_a_key_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="operator ops has no API key"):
        Keyring.load("acme:a-key", None, ("acme", "ops"))
