"""`/v1/webhook_endpoints` and `/v1/webhook_event_types`: create, list, retrieve, update, delete, rotate, test; and
deliveries, which OpenAI's API does not show."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from octavo.dialects.openai.webhooks import (
    EndpointRequest,
    EndpointUpdate,
    ResendRequest,
    RotateRequest,
    WebhookTestRequest,
    endpoint_object,
)
from octavo.queue.batches.keys import is_id
from octavo.queue.webhooks.keys import ENDPOINT
from octavo.terms.errors import InvalidRequest
from octavo.terms.webhooks import EVENT_TYPES
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.errors import ApiError
from octavo_gateway.files.routes import page
from octavo_gateway.http.body import described, json_body
from octavo_gateway.webhooks.endpoints import Endpoints, endpoints, no_endpoint

router = APIRouter(prefix="/v1", tags=["webhooks"])

Known = Annotated[Endpoints, Depends(endpoints)]
_ONE = "/webhook_endpoints/{webhook_endpoint_id}"


@router.get("/webhook_event_types")
async def event_types(tenant: CurrentTenant) -> dict[str, Any]:
    """Types of events that an endpoint may name."""
    return {"object": "list", "data": list(EVENT_TYPES)}


@router.post("/webhook_endpoints", openapi_extra=described(EndpointRequest))
async def create(
    tenant: CurrentTenant, known: Known, body: Annotated[EndpointRequest, Depends(json_body(EndpointRequest))]
) -> dict[str, Any]:
    """Make an endpoint known. Its secret is told now and never again. `400` for an address that is no public one."""
    _ = known.secrets
    await known.outgoing.check(body.url)
    info = await known.own(await known.client.create(tenant, body.name, body.url, body.event_types), tenant)
    return endpoint_object(info, known.secret_of(info), is_told=True)


@router.get("/webhook_endpoints")
async def index(
    tenant: CurrentTenant,
    known: Known,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The tenant's endpoints, newest first; `after` is the last id of the previous page. `400` for what is none."""
    if after is not None and not is_id(ENDPOINT, after):
        raise InvalidRequest("after must be the id of a webhook endpoint", code="invalid_value", param="after")
    _ = known.secrets
    found = await known.client.endpoints(tenant, limit=limit + 1, after=after)
    shown = [endpoint_object(info, known.secret_of(info)) for info in found[:limit]]
    return page(shown, has_more=len(found) > limit)


@router.get(_ONE)
async def show(tenant: CurrentTenant, known: Known, webhook_endpoint_id: str) -> dict[str, Any]:
    """The endpoint, without its secret."""
    info = await known.own(webhook_endpoint_id, tenant)
    return endpoint_object(info, known.secret_of(info))


@router.post(_ONE, openapi_extra=described(EndpointUpdate))
async def update(
    tenant: CurrentTenant,
    known: Known,
    webhook_endpoint_id: str,
    body: Annotated[EndpointUpdate, Depends(json_body(EndpointUpdate))],
) -> dict[str, Any]:
    """Change an endpoint, and switch it on. `400` for an address that is no public one, `404` for no endpoint."""
    info = await known.own(webhook_endpoint_id, tenant)
    if body.url is not None:
        await known.outgoing.check(body.url)
    if not await known.client.update(info.id, tenant, name=body.name, url=body.url, event_types=body.event_types):
        raise no_endpoint(webhook_endpoint_id)
    return await show(tenant, known, webhook_endpoint_id)


@router.delete(_ONE)
async def delete(tenant: CurrentTenant, known: Known, webhook_endpoint_id: str) -> dict[str, Any]:
    """Forget an endpoint and all that is on its way to it. `404` for no endpoint of the tenant."""
    info = await known.own(webhook_endpoint_id, tenant)
    if not await known.client.drop(info.id, tenant):
        raise no_endpoint(webhook_endpoint_id)
    return {"id": info.id, "object": "webhook_endpoint.deleted", "deleted": True}


@router.post(f"{_ONE}/rotate_secret", openapi_extra=described(RotateRequest))
async def rotate(
    tenant: CurrentTenant,
    known: Known,
    webhook_endpoint_id: str,
    body: Annotated[RotateRequest, Depends(json_body(RotateRequest))],
) -> dict[str, Any]:
    """Give an endpoint another secret, which is told now and never again. `404` for no endpoint of the tenant."""
    info = await known.own(webhook_endpoint_id, tenant)
    if not await known.client.rotate(info, keep_old=body.keep_old_secret_active_for_24_hours):
        raise no_endpoint(webhook_endpoint_id)
    info = await known.own(webhook_endpoint_id, tenant)
    return endpoint_object(info, known.secret_of(info), is_told=True)


@router.post(f"{_ONE}/test", openapi_extra=described(WebhookTestRequest))
async def test(
    tenant: CurrentTenant,
    known: Known,
    webhook_endpoint_id: str,
    body: Annotated[WebhookTestRequest, Depends(json_body(WebhookTestRequest))],
) -> dict[str, Any]:
    """Send a sample event now, and tell the status that came back. `400` where none came."""
    info = await known.own(webhook_endpoint_id, tenant)
    await known.outgoing.check(info.url)
    answer = await known.test(info, body.event_type)
    if not answer.status:
        message = f"the endpoint gave no answer ({answer.problem}): see that it can be reached from here"
        raise ApiError(400, message, code="webhook_unreachable", headers={"x-should-retry": "false"})
    return {
        "object": "webhook_endpoint.test",
        "webhook_endpoint_id": info.id,
        "event_type": body.event_type,
        "status_code": answer.status,
        "success": True,
    }


@router.get(f"{_ONE}/deliveries")
async def deliveries(
    tenant: CurrentTenant,
    known: Known,
    webhook_endpoint_id: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Deliveries that wait, then those that failed to the end, the latest first. `forgotten` have failed and are listed
    no more."""
    info = await known.own(webhook_endpoint_id, tenant)
    return await known.deliveries(info, limit)


@router.post(f"{_ONE}/resend", openapi_extra=described(ResendRequest))
async def resend(
    tenant: CurrentTenant,
    known: Known,
    webhook_endpoint_id: str,
    body: Annotated[ResendRequest, Depends(json_body(ResendRequest))],
) -> dict[str, Any]:
    """Begin anew what failed to the end, under the same ids. `409` for an endpoint that is switched off, `404` for no
    endpoint of the tenant."""
    return await known.resend(await known.own(webhook_endpoint_id, tenant), body.event_id)
