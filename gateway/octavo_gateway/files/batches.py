"""`/v1/batches`: create, list, retrieve, cancel. A clerk does the work."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from octavo.dialects.openai.batch.objects import BatchRequest, batch_object
from octavo.queue.batches.calls import NewBatch
from octavo.queue.batches.keys import BATCH, is_id, new_id
from octavo.terms.batches import BatchInfo, BatchStatus
from octavo.terms.errors import InvalidRequest
from octavo_gateway.auth import CurrentCaller, CurrentTenant
from octavo_gateway.door import KeyHeader
from octavo_gateway.errors import ApiError
from octavo_gateway.files.kept import Kept
from octavo_gateway.files.routes import Files, page
from octavo_gateway.http.body import described, json_body
from octavo_gateway.http.tracing import trace_of

router = APIRouter(prefix="/v1/batches", tags=["batches"])


@router.post("", openapi_extra=described(BatchRequest))
async def create(
    request: Request,
    caller: CurrentCaller,
    files: Files,
    body: Annotated[BatchRequest, Depends(json_body(BatchRequest))],
    idempotency_key: KeyHeader = None,
) -> dict[str, Any]:
    """Accept a batch. Faults of its file show in its `errors`, once it was looked at. `403` for a key that is confined
    to models."""
    await files.storage()
    if caller.models:  # the lines name models, and a clerk is to read them
        message = "a key that is confined to models creates no batches: use one that is not"
        raise ApiError(403, message, code="model_not_allowed", param="input_file_id")
    body.check()
    await files.own(body.input_file_id, caller.tenant, param="input_file_id")
    expiry = body.output_expires_after
    new = NewBatch(
        id=new_id(BATCH),
        tenant=caller.tenant,
        endpoint=body.endpoint,
        input_file_id=body.input_file_id,
        window=body.completion_window,
        window_s=body.window_s,
        metadata=body.metadata,
        output_expires_s=expiry.seconds if expiry is not None else None,
        key_id=caller.key_id,
        trace=trace_of(request),
    )
    info = await files.client.create(new, idempotency_key=idempotency_key)
    if info is None:
        raise _no_batch(new.id)
    return batch_object(info)


@router.get("")
async def index(
    tenant: CurrentTenant,
    files: Files,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """The tenant's batches, newest first; `after` is the last id of the previous page. `400` for what is none."""
    await files.storage()
    if after is not None and not is_id(BATCH, after):
        raise InvalidRequest("after must be the id of a batch", code="invalid_value", param="after")
    found = await files.client.batches(tenant, limit=limit + 1, after=after)
    return page([batch_object(info) for info in found[:limit]], has_more=len(found) > limit)


@router.get("/{batch_id}")
async def show(tenant: CurrentTenant, files: Files, batch_id: str) -> dict[str, Any]:
    """How a batch stands."""
    await files.storage()
    return batch_object(await _own(files, batch_id, tenant))


@router.post("/{batch_id}/cancel")
async def cancel(request: Request, tenant: CurrentTenant, files: Files, batch_id: str) -> dict[str, Any]:
    """Ask for a batch's end: what has ended is delivered. `409` for a batch that is at its end already."""
    await files.storage()
    await _own(files, batch_id, tenant)
    state = await files.client.cancel(batch_id, tenant=tenant)
    if state not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED, None):
        message = f"a batch that is {state.value} cannot be cancelled"
        raise ApiError(409, message, code="batch_not_cancellable", headers={"x-should-retry": "false"})
    return batch_object(await _own(files, batch_id, tenant))


async def _own(files: Kept, batch_id: str, tenant: str) -> BatchInfo:
    info = await files.client.batch(batch_id)
    if info is None or info.tenant != tenant:
        raise _no_batch(batch_id)
    return info


def _no_batch(batch_id: str) -> ApiError:
    message = f"no batch {batch_id[:60]!r}: it never existed, or ended more than 30 days ago"
    return ApiError(404, message, code="batch_not_found", param="batch_id")
