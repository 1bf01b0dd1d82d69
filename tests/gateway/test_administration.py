"""The administration dialect, as the openai package calls it, unmodified."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import httpx
import openai
import pytest
from waiting import STALL_S, until

from octavo.client.keys import KeyClient
from octavo.terms.access.api_keys import OF_TENANTS, KeyDigests, KeyText, Scope
from octavo.terms.access.secret import Secret

SECRET = "a secret of a service, of more than 32 characters"


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[KeyClient]:
    async with KeyClient(redis_url, KeyDigests(Secret([SECRET]))) as client:
        yield client


@pytest.fixture
def url(own_gateway: Callable[..., str]) -> str:
    return own_gateway(secret=SECRET, require_keys=True)


@pytest.fixture
async def operator(url: str, keys: KeyClient) -> AsyncIterator[openai.AsyncOpenAI]:
    _, key = await keys.create("ops", "first", scopes=frozenset({Scope.OPERATOR}))
    async with administrator(url, key) as ai:
        yield ai


def administrator(url: str, key: KeyText) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", admin_api_key=key.text, max_retries=0, timeout=STALL_S
    )


async def status(url: str, key: str, path: str = "/v1/jobs") -> int:
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        return (await http.get(path, headers={"Authorization": f"Bearer {key}"})).status_code


async def test_projects(operator: openai.AsyncOpenAI, url: str) -> None:
    projects = operator.admin.organization.projects
    acme = await projects.create(name="Acme", extra_body={"octavo": {"id": "acme"}})
    other = await projects.create(name="Other")
    assert (acme.id, acme.name, acme.status, acme.object) == ("acme", "Acme", "active", "organization.project")
    assert other.id.startswith("proj_")
    assert [one.id async for one in projects.list(limit=1)] == ["ops", "acme", other.id]
    assert (await projects.update("acme", name="Acme Inc.")).name == "Acme Inc."
    assert (await projects.retrieve("acme")).name == "Acme Inc."
    ended = await projects.archive(other.id)
    assert (ended.status, ended.archived_at is not None) == ("archived", True)
    assert [one.id async for one in projects.list()] == ["ops", "acme"]
    assert [one.id async for one in projects.list(include_archived=True)] == ["ops", "acme", other.id]
    with pytest.raises(openai.ConflictError):
        await projects.create(name="again", extra_body={"octavo": {"id": "acme"}})
    with pytest.raises(openai.NotFoundError):
        await projects.retrieve("globex")
    for refused in ({"geography": "EU"}, {"external_key_id": "k"}, {"extra_body": {"octavo": {"id": "a:b"}}}):
        with pytest.raises(openai.BadRequestError):
            await projects.create(name="x", **refused)


async def test_service_accounts_and_their_keys(operator: openai.AsyncOpenAI, url: str, keys: KeyClient) -> None:
    projects = operator.admin.organization.projects
    await projects.create(name="Acme", extra_body={"octavo": {"id": "acme"}})
    made = await projects.service_accounts.create("acme", name="nightly", expires_in_seconds=3600)
    assert made.api_key is not None
    assert (made.role, made.api_key.object) == ("member", "organization.project.service_account.api_key")
    assert made.api_key.expires_at == pytest.approx(made.api_key.created_at + 3600, abs=1)
    assert await status(url, made.api_key.value) == 200
    bare = await projects.service_accounts.create("acme", name="bare", create_service_account_only=True)
    assert (bare.api_key, bare.role) == (None, "none")
    second = await projects.service_accounts.api_keys.create(
        made.id, project_id="acme", name="second", scopes=["jobs:read"]
    )
    assert await status(url, second.value) == 200
    assert await status(url, second.value, "/v1/files") == 403
    assert [one.id async for one in projects.service_accounts.list("acme", limit=1)] == [made.id, bare.id]
    renamed = await projects.service_accounts.update(made.id, project_id="acme", name="daily")
    assert renamed.name == (await projects.service_accounts.retrieve(made.id, project_id="acme")).name == "daily"
    shown = [one async for one in projects.api_keys.list("acme", limit=1)]
    assert [one.id for one in shown] == [made.api_key.id, second.id]
    owner = shown[0].owner.service_account
    assert owner is not None
    assert (owner.id, owner.name) == (made.id, "daily")
    assert not any(secret.rpartition("-")[2] in str(shown) for secret in (made.api_key.value, second.value))
    assert shown[0].redacted_value.startswith(made.api_key.value[: len("sk-oct-") + 26])
    gone = await projects.service_accounts.delete(made.id, project_id="acme")
    assert gone.deleted
    for value in (made.api_key.value, second.value):
        await until(lambda value=value: refused(url, value))
    assert [one async for one in projects.api_keys.list("acme")] == []


async def refused(url: str, key: str) -> bool:
    return await status(url, key) == 401


async def test_keys_are_changed_rotated_and_revoked(operator: openai.AsyncOpenAI, url: str, keys: KeyClient) -> None:
    made, first = await keys.create("acme", "by hand")
    api_keys = operator.admin.organization.projects.api_keys
    shown = await api_keys.retrieve(made.id, project_id="acme")
    assert (shown.id, shown.name, shown.owner.service_account) == (made.id, "by hand", None)
    changed = await api_keys.update(made.id, project_id="acme", scopes=["jobs:read"], expires_in_seconds=60)
    assert changed.expires_at is not None
    assert changed.model_extra is not None
    assert changed.model_extra["octavo"]["scopes"] == ["jobs:read"]
    widened = await api_keys.update(made.id, project_id="acme", scopes=[])
    assert widened.model_extra is not None
    assert set(widened.model_extra["octavo"]["scopes"]) == OF_TENANTS
    assert widened.expires_at == changed.expires_at
    rotated = await operator.post(
        f"/organization/projects/acme/api_keys/{made.id}/rotate",
        cast_to=httpx.Response,
        body={"grace_seconds": 600},
        options={"security": {"admin_api_key_auth": True}},
    )
    assert rotated.headers["cache-control"] == "no-store"
    assert rotated.json()["id"] == made.id
    for value in (first.text, rotated.json()["value"]):
        await until(lambda value=value: accepted(url, value))
    assert (await api_keys.delete(made.id, project_id="acme")).deleted
    for value in (first.text, rotated.json()["value"]):
        await until(lambda value=value: refused(url, value))
    with pytest.raises(openai.NotFoundError):
        await api_keys.retrieve(made.id, project_id="acme")


async def accepted(url: str, key: str) -> bool:
    return await status(url, key) == 200


async def test_an_administrator_has_its_own_tenant_and_no_more_rights_than_its_key(url: str, keys: KeyClient) -> None:
    admin, key = await keys.create("acme", "admin", scopes=frozenset({Scope.ADMIN}))
    operators, _ = await keys.create("acme", "operator's", scopes=frozenset({Scope.OPERATOR}))
    strange, _ = await keys.create("globex", "other")
    await keys.create_account("globex", "other")
    async with administrator(url, key) as ai:
        projects = ai.admin.organization.projects
        assert (await projects.retrieve("acme")).id == "acme"
        made = await projects.service_accounts.create("acme", name="nightly")
        assert made.api_key is not None
        assert await status(url, made.api_key.value) == 200
        for asked in (
            lambda: projects.service_accounts.create("acme", name="x", extra_body={"octavo": {"scopes": ["operator"]}}),
            lambda: projects.api_keys.update(admin.id, project_id="acme", scopes=["operator"]),
            lambda: projects.api_keys.update(operators.id, project_id="acme", expires_in_seconds=9),
            lambda: projects.api_keys.delete(operators.id, project_id="acme"),
            lambda: projects.list(),
            lambda: projects.create(name="x"),
            lambda: projects.update("acme", name="x"),
            lambda: projects.archive("acme"),
        ):
            with pytest.raises(openai.PermissionDeniedError):
                await asked()
        for asked in (
            lambda: projects.retrieve("globex"),
            lambda: projects.retrieve("never"),
            lambda: projects.service_accounts.list("globex"),
            lambda: projects.api_keys.list("globex"),
            lambda: projects.api_keys.delete(strange.id, project_id="globex"),
            lambda: projects.api_keys.delete(strange.id, project_id="acme"),
        ):
            with pytest.raises(openai.NotFoundError):
                await asked()
    assert await keys.key(strange.id) == strange
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        rotation = await http.post(
            f"/v1/organization/projects/acme/api_keys/{operators.id}/rotate",
            headers={"Authorization": f"Bearer {key.text}"},
            json={},
        )
        assert rotation.status_code == 403


async def test_an_administrator_that_is_confined_makes_no_wider_keys(url: str, keys: KeyClient) -> None:
    _, key = await keys.create("acme", "admin", scopes=frozenset({Scope.ADMIN}), models=["toy"])
    wide, _ = await keys.create("acme", "wide")
    async with administrator(url, key) as ai:
        projects = ai.admin.organization.projects
        made = await projects.service_accounts.create("acme", name="x", extra_body={"octavo": {"models": ["toy"]}})
        assert made.api_key is not None
        for body in ({}, {"octavo": {"models": ["toy", "demo"]}}):
            with pytest.raises(openai.PermissionDeniedError):
                await projects.service_accounts.create("acme", name="x", extra_body=body)
            with pytest.raises(openai.PermissionDeniedError):
                await projects.service_accounts.api_keys.create(made.id, project_id="acme", extra_body=body)
        with pytest.raises(openai.PermissionDeniedError):
            await projects.api_keys.update(wide.id, project_id="acme", expires_in_seconds=600)
    assert len(await keys.list("acme", limit=10)) == 3


async def test_a_gateway_that_asks_for_no_keys_makes_none(own_gateway: Callable[..., str], keys: KeyClient) -> None:
    async with httpx.AsyncClient(base_url=own_gateway(secret=SECRET), timeout=STALL_S) as http:
        for path in ("", "/acme/service_accounts"):
            answer = await http.post(f"/v1/organization/projects{path}", json={"name": "x"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "keys_required")
    assert await keys.list(limit=10) == []


async def test_an_account_is_not_half_made_without_a_secret(own_gateway: Callable[..., str], keys: KeyClient) -> None:
    await keys.create_project("Acme", "acme")
    url = own_gateway(api_keys="ops:o-key", operators="ops")
    async with httpx.AsyncClient(base_url=url, timeout=STALL_S) as http:
        answer = await http.post(
            "/v1/organization/projects/acme/service_accounts",
            headers={"Authorization": "Bearer o-key"},
            json={"name": "x"},
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_secret")
    assert await keys.accounts("acme", limit=10) == []
