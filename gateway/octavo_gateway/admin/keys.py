"""`/v1/organization/projects/{project_id}/api_keys`: list, look, change, rotate, revoke."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from octavo.queue.tenants.keys import ApiKey
from octavo_gateway.admin.access import AdminKeys, OwnProject, check_grant, no_key, own_key, secret
from octavo_gateway.admin.bodies import KeyChange, KeyRotation, scopes_of
from octavo_gateway.admin.objects import key_object, new_key_object
from octavo_gateway.auth import CurrentCaller
from octavo_gateway.files.routes import page
from octavo_gateway.http.body import described, json_body

router = APIRouter(prefix="/v1/organization/projects/{project_id}/api_keys", tags=["administration"])


@router.get("")
async def index(
    project: OwnProject,
    keys: AdminKeys,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    owner_project_access: Literal["active", "inactive", "any"] = "any",
) -> dict[str, Any]:
    """Keys that are not revoked, the oldest first; `after` is the last id of the previous page. The owner of a key has
    access to its project for as long as there is the key."""
    found = [] if owner_project_access == "inactive" else await keys.list(project.id, limit=limit + 1, after=after)
    owners = await keys.accounts_of([key.account for key in found])
    data = [key_object(key, owners.get(key.account)) for key in found[:limit]]
    return page(data, has_more=len(found) > limit)


async def _own_key(api_key_id: str, project: OwnProject, keys: AdminKeys) -> ApiKey:
    return await own_key(keys, api_key_id, project)


OwnKey = Annotated[ApiKey, Depends(_own_key)]


async def _manageable(key: OwnKey, caller: CurrentCaller) -> ApiKey:
    """Raises ApiError 403: a secret of a key with more rights would give them to its administrator."""
    check_grant(caller, key.scopes, key.models)
    return key


Manageable = Annotated[ApiKey, Depends(_manageable)]


@router.get("/{api_key_id}")
async def show(key: OwnKey, keys: AdminKeys) -> dict[str, Any]:
    """One key, without its secret."""
    return await _shown(key, keys)


@router.post("/{api_key_id}", openapi_extra=described(KeyChange))
async def change(
    key: Manageable,
    keys: AdminKeys,
    caller: CurrentCaller,
    body: Annotated[KeyChange, Depends(json_body(KeyChange))],
) -> dict[str, Any]:
    """Change when a key expires, from now on, and what it may do. `404` for one that has expired."""
    scopes = None if body.scopes is None else scopes_of(body.scopes)
    check_grant(caller, scopes or (), key.models)
    if not await keys.change(key.id, tenant=key.tenant, expires_s=body.expires_in_seconds, scopes=scopes):
        raise no_key(key.id)
    return await _shown(await keys.key(key.id) or key, keys)


@router.post("/{api_key_id}/rotate", openapi_extra=described(KeyRotation))
async def rotate(
    key: Manageable, keys: AdminKeys, body: Annotated[KeyRotation, Depends(json_body(KeyRotation))]
) -> JSONResponse:
    """A new secret under the same id, seen here and never again. The one before holds for `grace_seconds`. `404` for a
    key that has expired."""
    text = await keys.rotate(key.id, tenant=key.tenant, grace_s=body.grace_seconds)
    if text is None:
        raise no_key(key.id)
    return secret(new_key_object(key, text))


@router.delete("/{api_key_id}")
async def revoke(key: Manageable, keys: AdminKeys) -> dict[str, Any]:
    """End a key for good. `404` for one that was revoked meanwhile."""
    if not await keys.revoke(key.id, tenant=key.tenant):
        raise no_key(key.id)
    return {"id": key.id, "object": "organization.project.api_key.deleted", "deleted": True}


async def _shown(key: ApiKey, keys: AdminKeys) -> dict[str, Any]:
    owners = await keys.accounts_of([key.account])
    return key_object(key, owners.get(key.account))
