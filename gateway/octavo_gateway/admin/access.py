"""Projects and keys that a caller may administer: with `operator` all, with `admin` those of its own tenant."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import JSONResponse

from octavo.client.keys import KeyClient
from octavo.queue.tenants.keys import ApiKey, Project
from octavo.terms.access.api_keys import Scope
from octavo_gateway.auth import Caller, CurrentCaller
from octavo_gateway.errors import ApiError
from octavo_gateway.state import Gateway


async def _keys(request: Request) -> KeyClient:
    """Raises ApiError 403 where no key is asked for: a key that anything makes now would count for ever."""
    gateway: Gateway = request.state.gateway
    if gateway.authentication.is_open:
        message = "a gateway without keys administers none: set OCTAVO_REQUIRE_KEYS, and make one with `octavo keys`"
        raise ApiError(403, message, code="keys_required")
    return gateway.keys


AdminKeys = Annotated[KeyClient, Depends(_keys)]


async def _own_project(project_id: str, caller: CurrentCaller, keys: AdminKeys) -> Project:
    is_own = caller.is_operator or project_id == caller.tenant
    project = await keys.project(project_id) if is_own else None
    if project is None:
        raise no_project(project_id)
    return project


OwnProject = Annotated[Project, Depends(_own_project)]


def check_grant(caller: Caller, scopes: Collection[Scope], models: Collection[str]) -> None:
    """Raises ApiError 403 for rights beyond those of an administrator's own key: it could use what it makes."""
    if Scope.OPERATOR in scopes and not caller.is_operator:
        raise ApiError(403, "this needs a key with the scope operator", code="insufficient_scope")
    if caller.models and (not models or not set(models) <= caller.models):
        raise ApiError(403, "a key that is confined to models administers no wider ones", code="model_not_allowed")


async def own_key(keys: KeyClient, key_id: str, project: Project) -> ApiKey:
    """A key of a project that is not revoked. Raises ApiError 404."""
    found = await keys.key(key_id, tenant=project.id)
    if found is None or found.revoked_at is not None:
        raise no_key(key_id)
    return found


def secret(body: dict[str, Any]) -> JSONResponse:
    """An answer with a secret in it."""
    return JSONResponse(body, headers={"Cache-Control": "no-store"})


def no_project(project_id: str) -> ApiError:
    """404 for a project: that there is another tenant's is that tenant's business."""
    return ApiError(404, f"no project {project_id[:64]!r}", code="project_not_found", param="project_id")


def no_account(account_id: str) -> ApiError:
    """404 for a service account."""
    message = f"no service account {account_id[:60]!r}: it never existed, or was deleted"
    return ApiError(404, message, code="account_not_found", param="service_account_id")


def no_key(key_id: str) -> ApiError:
    """404 for a key. Its id is not repeated where it may be a key itself."""
    shown = repr(key_id) if key_id.startswith("key_") and len(key_id) <= 30 else "of this id"
    message = f"no key {shown}: it never existed, or was revoked"
    return ApiError(404, message, code="key_not_found", param="api_key_id")
