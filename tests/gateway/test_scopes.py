"""Scopes: every route has its own in one table, and a key without it is refused."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from scripted_worker import MODEL, ScriptedWorker
from starlette.routing import BaseRoute, Mount
from waiting import STALL_S

from octavo.client.keys import KeyClient
from octavo.terms.access.api_keys import KeyDigests, KeyText, Scope
from octavo.terms.access.secret import Secret
from octavo_gateway.app import create_app
from octavo_gateway.auth.scopes import ROUTES, Open
from octavo_gateway.settings import GatewaySettings

SECRET = "a secret of a service, of more than 32 characters"
NAMES = {"job_id": "g00_01ARZ3NDEKTSV4RRFFQ69G5FAV", "response_id": "resp_g00_01ARZ3NDEKTSV4RRFFQ69G5FAV"}


def routes(of: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in of:
        if isinstance(route, Mount):
            assert route.path == "/static"
        elif isinstance(route, APIRoute):
            for method in route.methods:
                yield ("GET" if method == "HEAD" else method, route.path)
        else:
            yield from routes(route.original_router.routes)  # what FastAPI makes of a router


def test_every_route_has_a_scope_and_every_scope_a_route() -> None:
    found = set(routes(create_app(GatewaySettings()).routes))
    assert len(found) > 40
    assert found == set(ROUTES)


def test_what_is_open_to_all_tells_nothing_of_any_tenant() -> None:
    assert {path for (_, path), needed in ROUTES.items() if needed is Open.TO_ALL} == {
        *("/", "/livez", "/readyz", "/health", "/ping", "/version")
    }
    assert {path for (_, path), needed in ROUTES.items() if needed is Open.TO_ANY_KEY} == {
        *("/v1/models", "/v1/models/{name:path}", "/v1/workers", "/openapi.json", "/docs")
    }


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[KeyClient]:
    async with KeyClient(redis_url, KeyDigests(Secret([SECRET]))) as client:
        yield client


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(secret=SECRET, require_keys=True)


def address(path: str) -> str:
    return re.sub(r"\{(\w+)(:path)?\}", lambda name: NAMES.get(name[1], "nothing"), path)


def bearer(key: KeyText) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text}"}


async def refusal(http: httpx.AsyncClient, method: str, url: str, key: KeyText) -> str | None:
    """The words of a refusal for want of a scope. A stream that begins is none."""
    async with http.stream(method, url, headers=bearer(key)) as answer:
        if answer.status_code != 403:
            return None
        await answer.aread()
        error = answer.json()["error"]
    assert error["type"] == "permission_error"
    return None if error.get("code") == "not_the_page" else str(error["message"])


async def test_a_route_is_closed_to_every_key_without_its_scope(url: str, keys: KeyClient) -> None:
    made = {scope: (await keys.create("acme", scope, scopes=frozenset({scope})))[1] for scope in Scope}
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        for (method, path), needed in ROUTES.items():
            assert ((await http.request(method, address(path))).status_code == 401) == (needed is not Open.TO_ALL)
            for scope, key in made.items():
                is_let_in = isinstance(needed, Open) or scope in (needed, Scope.OPERATOR)
                found = await refusal(http, method, address(path), key)
                assert (found is None) == is_let_in, (method, path, scope, found)
            if method == "GET":
                other = Scope.USAGE if needed is not Scope.USAGE else Scope.BATCHES
                headed = await http.head(address(path), headers=bearer(made[other]))
                assert (headed.status_code == 403) == (not isinstance(needed, Open))


async def test_a_key_without_scopes_of_its_own_is_a_tenant_s(url: str, keys: KeyClient) -> None:
    _, key = await keys.create("acme", "ci")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        assert (await http.get("/v1/jobs", headers=bearer(key))).status_code == 200
        for path in ("/metrics", "/v1/workers/w/memory"):
            refused = await http.get(path, headers=bearer(key))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_an_operator")


async def test_a_confined_key_creates_no_batches(
    own_gateway: Callable[..., str], keys: KeyClient, tmp_path: Path
) -> None:
    url = own_gateway(secret=SECRET, require_keys=True, files=str(tmp_path / "files"))
    _, mine = await keys.create("acme", "ci", models=[MODEL])
    _, free = await keys.create("acme", "ci")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        file = await http.post(
            "/v1/files", headers=bearer(mine), data={"purpose": "batch"}, files={"file": ("in.jsonl", b"{}")}
        )
        body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        refused = await http.post("/v1/batches", headers=bearer(mine), json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert (await http.post("/v1/batches", headers=bearer(free), json=body)).status_code == 200


async def test_a_key_is_confined_to_models(url: str, keys: KeyClient, redis_url: str) -> None:
    _, mine = await keys.create("acme", "ci", models=[MODEL])
    _, other = await keys.create("acme", "ci", models=["another"])
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    asked = {
        "/v1/jobs": {"model": MODEL, "prompt": "x"},
        "/v1/completions": {"model": MODEL, "prompt": ["x", "y"]},
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/messages/count_tokens": {"model": MODEL, "messages": chat["messages"]},
        "/v1/responses": {"model": MODEL, "input": "x"},
        "/v1/chat": {
            "model": MODEL,
            "id": "c",
            "messages": [{"role": "user", "parts": [{"type": "text", "text": "x"}]}],
        },
        "/tokenize": {"model": MODEL, "prompt": "x"},
        "/detokenize": {"model": MODEL, "tokens": [1]},
    }
    async with ScriptedWorker(redis_url), httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        for path, body in asked.items():
            refused = await http.post(path, headers=bearer(other), json=body)
            assert refused.status_code == 403, (path, refused.text)
            if "messages" not in path:
                assert refused.json()["error"]["code"] == "model_not_allowed"
            assert (await http.post(path, headers=bearer(mine), json=body)).is_success, path
        for key, ids in ((mine, [MODEL]), (other, [])):
            listed = (await http.get("/v1/models", headers=bearer(key))).json()["data"]
            assert [card["id"] for card in listed] == ids
            shown = await http.get(f"/v1/models/{MODEL}", headers=bearer(key))
            assert shown.status_code == (200 if ids else 404)
            assert bool(ids) or f"{MODEL}," not in shown.text
        without_name = await http.post("/tokenize", headers=bearer(other), json={"prompt": "x"})
        assert (without_name.status_code, "known models: none" in without_name.text) == (404, True)
