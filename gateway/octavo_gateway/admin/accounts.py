"""`/v1/organization/projects/{project_id}/service_accounts`: the owners of keys, and new keys of theirs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from octavo.queue.tenants.keys import Account
from octavo_gateway.admin.access import AdminKeys, OwnProject, check_grant, no_account, secret
from octavo_gateway.admin.bodies import AccountChange, AccountRequest, KeyRequest, scopes_of
from octavo_gateway.admin.objects import account_object, new_key_object
from octavo_gateway.auth import CurrentCaller
from octavo_gateway.errors import ApiError
from octavo_gateway.files.routes import page
from octavo_gateway.http.body import described, json_body

router = APIRouter(prefix="/v1/organization/projects/{project_id}/service_accounts", tags=["administration"])


@router.get("")
async def index(
    project: OwnProject,
    keys: AdminKeys,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """Service accounts, the oldest first; `after` is the last id of the previous page."""
    found = await keys.accounts(project.id, limit=limit + 1, after=after)
    return page([account_object(account) for account in found[:limit]], has_more=len(found) > limit)


@router.post("", openapi_extra=described(AccountRequest))
async def create(
    project: OwnProject,
    keys: AdminKeys,
    caller: CurrentCaller,
    body: Annotated[AccountRequest, Depends(json_body(AccountRequest))],
) -> JSONResponse:
    """A new service account, and its first key, whose secret is seen here and never again. `400` for an expiry of no
    key."""
    if body.create_service_account_only:
        if body.expires_in_seconds is not None:
            message = "expires_in_seconds is of a key, and create_service_account_only asks for none"
            raise ApiError(400, message, code="invalid_value", param="expires_in_seconds")
        account = await keys.create_account(project.id, body.name)
        return secret({**account_object(account), "role": "none", "api_key": None})
    scopes = scopes_of(body.octavo.scopes)
    check_grant(caller, scopes, body.octavo.models)
    keys.check_secret()
    account = await keys.create_account(project.id, body.name)
    made, text = await keys.create(
        project.id,
        body.name,
        account=account.id,
        scopes=scopes,
        models=body.octavo.models,
        expires_s=body.expires_in_seconds,
    )
    return secret({**account_object(account), "api_key": new_key_object(made, text)})


async def _own_account(service_account_id: str, project: OwnProject, keys: AdminKeys) -> Account:
    found = await keys.account(service_account_id, tenant=project.id)
    if found is None:
        raise no_account(service_account_id)
    return found


OwnAccount = Annotated[Account, Depends(_own_account)]


@router.get("/{service_account_id}")
async def show(account: OwnAccount) -> dict[str, Any]:
    """One service account."""
    return account_object(account)


@router.post("/{service_account_id}", openapi_extra=described(AccountChange))
async def change(
    account: OwnAccount, keys: AdminKeys, body: Annotated[AccountChange, Depends(json_body(AccountChange))]
) -> dict[str, Any]:
    """Rename a service account. `404` for one that goes meanwhile."""
    if body.name is not None:
        await keys.rename_account(account.id, body.name, tenant=account.tenant)
    found = await keys.account(account.id, tenant=account.tenant)
    if found is None:
        raise no_account(account.id)
    return account_object(found)


@router.delete("/{service_account_id}")
async def delete(account: OwnAccount, keys: AdminKeys) -> dict[str, Any]:
    """Forget a service account and revoke its keys. `404` for one that goes meanwhile."""
    if not await keys.drop_account(account.id, tenant=account.tenant):
        raise no_account(account.id)
    return {"id": account.id, "object": "organization.project.service_account.deleted", "deleted": True}


@router.post("/{service_account_id}/api_keys", openapi_extra=described(KeyRequest))
async def create_key(
    account: OwnAccount,
    keys: AdminKeys,
    caller: CurrentCaller,
    body: Annotated[KeyRequest, Depends(json_body(KeyRequest))],
) -> JSONResponse:
    """A new key of a service account, whose secret is seen here and never again."""
    scopes = scopes_of(body.scopes, body.octavo.scopes)
    check_grant(caller, scopes, body.octavo.models)
    made, text = await keys.create(
        account.tenant,
        body.name,
        account=account.id,
        scopes=scopes,
        models=body.octavo.models,
        expires_s=body.expires_in_seconds,
    )
    return secret(new_key_object(made, text))
