"""`/v1/fleet/webhooks`: deliveries of any tenant that wait or have failed, for operators. No secrets, no bodies."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from octavo.dialects.openai.webhooks import ResendRequest
from octavo_gateway.http.body import described, json_body
from octavo_gateway.live.lanes import allowed
from octavo_gateway.webhooks.endpoints import Endpoints, endpoints

router = APIRouter(prefix="/v1/fleet/webhooks/{webhook_endpoint_id}", tags=["fleet"])

Known = Annotated[Endpoints, Depends(endpoints)]


@router.get("")
async def deliveries(
    known: Known, webhook_endpoint_id: str, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> dict[str, Any]:
    """Deliveries of an endpoint that wait, then those that failed to the end, the latest first. `404` for none."""
    return await known.deliveries(await known.any(webhook_endpoint_id), limit)


@router.post("/resend", dependencies=[Depends(allowed)], openapi_extra=described(ResendRequest))
async def resend(
    known: Known, webhook_endpoint_id: str, body: Annotated[ResendRequest, Depends(json_body(ResendRequest))]
) -> dict[str, Any]:
    """Begin anew what failed to the end, under the same ids. `409` for an endpoint that is switched off, `404` for no
    endpoint."""
    return await known.resend(await known.any(webhook_endpoint_id), body.event_id)
