"""Two tenants, every route and every kind of id: what is another's is answered as what never was."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted_worker import MODEL, ScriptedWorker
from waiting import STALL_S, until

from octavo import AsyncClient
from octavo.client.keys import KeyClient
from octavo.queue.batches.keys import BATCH, FILE
from octavo.queue.batches.keys import new_id as new_file_id
from octavo.queue.keys import Keys
from octavo.queue.tenants.names import ACCOUNT_ID, new_id
from octavo.queue.webhooks.keys import ENDPOINT
from octavo.terms.access.api_keys import KEY_ID, OF_TENANTS, KeyDigests, KeyText, Scope
from octavo.terms.access.secret import Secret
from octavo.terms.workers import PinOutcome
from octavo_gateway.auth.scopes import ROUTES

SECRET = "a secret of a service, of more than 32 characters"
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"toy","prompt":"x"}}\n'
NOT_OF_TENANTS = {"name", "worker_id"}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v1/organization/projects/{project_id}/service_accounts"): {"name": "x"},
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}"): {"name": "x"},
    ("POST", "/v1/webhook_endpoints/{webhook_endpoint_id}/test"): {"event_type": "batch.completed"},
}
HOOKS = {"webhook_http": True, "webhook_networks": ("127.0.0.0/8",)}
UNKNOWN = {
    "job_id": Keys().new_job_id(),
    "response_id": f"resp_{Keys().new_job_id()}",
    "chat_id": "no-chat",
    "file_id": new_file_id(FILE),
    "batch_id": new_file_id(BATCH),
    "project_id": "never",
    "service_account_id": new_id(ACCOUNT_ID),
    "api_key_id": new_id(KEY_ID),
    "webhook_endpoint_id": new_id(ENDPOINT),
}
ROUTES_WITH_IDS = sorted(
    (method, path)
    for (method, path), needed in ROUTES.items()
    if needed is not Scope.OPERATOR and set(re.findall(r"\{(\w+)", path)) - NOT_OF_TENANTS
)


def bearer(key: KeyText) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text}"}


class Tenants:
    """Two tenants at a gateway. `ids`: what acme has, one of each kind; globex asks."""

    def __init__(self, http: httpx.AsyncClient, acme: KeyText, globex: KeyText, ids: dict[str, str]) -> None:
        self.http = http
        self.acme = acme
        self.globex = globex
        self.ids = ids

    async def asked(self, key: KeyText, method: str, path: str, ids: dict[str, str]) -> tuple[int, str, str]:
        """Status, body and kind of an answer, without ids and what the request was told of itself."""
        url = re.sub(r"\{(\w+)(:path)?\}", lambda name: ids[name[1]], path)
        body = BODIES.get((method, path), {})
        answer = await self.http.request(method, url, headers=bearer(key), json=body if method == "POST" else None)
        text = answer.text
        for name in re.findall(r"\{(\w+)", path):
            text = text.replace(ids[name], name)
        return answer.status_code, text, answer.headers.get("content-type", "")


async def made_by(http: httpx.AsyncClient, key: KeyText, made: Any, account: Any) -> dict[str, str]:
    """One of each kind. Its jobs go on."""
    own = bearer(key)
    job = (await http.post("/v1/jobs", headers=own, json={"model": MODEL, "prompt": "x"})).json()
    response = await http.post(
        "/v1/responses", headers=own, json={"model": MODEL, "input": "x", "background": True, "store": True}
    )
    parts = [{"type": "text", "text": "x"}]
    async with http.stream(
        "POST",
        "/v1/chat",
        headers=own,
        json={"model": MODEL, "id": "a-chat", "messages": [{"role": "user", "parts": parts}]},
    ) as chat:
        assert chat.status_code == 200, await chat.aread()
        await anext(chat.aiter_bytes())
    file = await http.post(
        "/v1/files", headers=own, data={"purpose": "batch"}, files={"file": ("in.jsonl", LINE, "application/jsonl")}
    )
    batch = await http.post(
        "/v1/batches",
        headers=own,
        json={"input_file_id": file.json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"},
    )
    about = {"name": "n", "url": "http://127.0.0.1:9/", "event_types": ["batch.completed"]}
    hook = await http.post("/v1/webhook_endpoints", headers=own, json=about)
    return {
        "job_id": job["id"],
        "response_id": response.json()["id"],
        "chat_id": "a-chat",
        "file_id": file.json()["id"],
        "batch_id": batch.json()["id"],
        "project_id": "acme",
        "service_account_id": account.id,
        "api_key_id": made.id,
        "webhook_endpoint_id": hook.json()["id"],
    }


@pytest.fixture
async def tenants(
    own_gateway: Callable[..., str], redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tenants]:
    pins = {f"{tenant}:pin": PinOutcome(state="pinned", version="1", tokens=16) for tenant in ("acme", "globex")}
    monkeypatch.setattr(ScriptedWorker, "pins", pins)
    url = own_gateway(secret=SECRET, require_keys=True, files=str(tmp_path / "files"), **HOOKS)
    scopes = OF_TENANTS | {Scope.ADMIN}
    async with (
        KeyClient(redis_url, KeyDigests(Secret([SECRET]))) as keys,
        ScriptedWorker(redis_url, hold_after=1),
        httpx.AsyncClient(base_url=url, timeout=STALL_S) as http,
    ):
        account = await keys.create_account("acme", "ci")
        _, acme = await keys.create("acme", "admin", scopes=scopes)
        made, _ = await keys.create("acme", "ci", account=account.id)
        _, globex = await keys.create("globex", "admin", scopes=scopes)
        yield Tenants(http, acme, globex, await made_by(http, acme, made, account))
        async with AsyncClient(redis_url) as client:
            for job in await client.jobs(limit=100):
                await client.cancel(job.id)


async def test_what_is_another_s_is_answered_as_what_never_was(tenants: Tenants) -> None:
    assert len(ROUTES_WITH_IDS) > 25
    for method, path in ROUTES_WITH_IDS:
        strange = await tenants.asked(tenants.globex, method, path, tenants.ids)
        unknown = await tenants.asked(tenants.globex, method, path, UNKNOWN)
        assert strange == unknown, (method, path)
        assert strange[0] == (204 if "chat" in path else 404), (method, path, strange)
        if "chat" not in path:
            of_own_project = {**tenants.ids, "project_id": "globex"}
            if "project_id" in path and path.count("{") > 1:
                within = await tenants.asked(tenants.globex, method, path, of_own_project)
                never = await tenants.asked(tenants.globex, method, path, {**UNKNOWN, "project_id": "globex"})
                assert within == never, (method, path)
                assert within[0] == 404, (method, path, within)
    for method, path in ROUTES_WITH_IDS:  # and nothing was changed by all that: a stream would last
        if method == "GET" and not path.endswith(("/stream", "/content")):
            status, text, _ = await tenants.asked(tenants.acme, method, path, tenants.ids)
            assert status in (200, 202), (path, text)
            assert not re.search(r'"status":\s*"cancell', text), (path, text)


async def test_ids_in_bodies_and_queries_reach_no_other_tenant(tenants: Tenants) -> None:
    http, stranger = tenants.http, bearer(tenants.globex)
    await tenants.http.post(f"/v1/responses/{tenants.ids['response_id']}/cancel", headers=bearer(tenants.acme))

    async def both(
        make: Callable[[dict[str, str]], dict[str, Any]], path: str, name: str, method: str = "POST"
    ) -> None:
        answers = []
        for ids in (tenants.ids, UNKNOWN):
            answer = await http.request(method, path, headers=stranger, **make(ids))
            answers.append((answer.status_code, answer.text.replace(ids[name], name)))
        assert answers[0] == answers[1], path
        assert answers[0][0] in (200, 400, 404), answers

    await both(
        lambda ids: {"json": {"model": MODEL, "input": "x", "previous_response_id": ids["response_id"]}},
        "/v1/responses",
        "response_id",
    )
    await both(
        lambda ids: {
            "json": {"input_file_id": ids["file_id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        },
        "/v1/batches",
        "file_id",
    )
    for path, name in (("/v1/jobs", "job_id"), ("/v1/files", "file_id"), ("/v1/batches", "batch_id")):
        await both(lambda ids, name=name: {"params": {"after": ids[name]}}, path, name, "GET")
    await both(
        lambda ids: {"params": {"after": ids["api_key_id"]}},
        "/v1/organization/projects/globex/service_accounts",
        "api_key_id",
        "GET",
    )


async def test_lists_have_one_tenant_s_alone(tenants: Tenants) -> None:
    for path in ("/v1/jobs", "/v1/files", "/v1/batches"):
        for key, is_own in ((tenants.acme, True), (tenants.globex, False)):
            data = (await tenants.http.get(path, headers=bearer(key))).json()["data"]
            assert bool(data) == is_own, path
    for kind in ("service_accounts", "api_keys"):
        text = (await tenants.http.get(f"/v1/organization/projects/globex/{kind}", headers=bearer(tenants.globex))).text
        assert not any(one in text for one in (tenants.ids["service_account_id"], tenants.ids["api_key_id"]))

    async def pins() -> list[str]:
        (worker,) = (await tenants.http.get("/v1/workers", headers=bearer(tenants.globex))).json()["data"]
        return list(worker["pins"])

    await until(pins)
    assert await pins() == ["globex:pin"]
