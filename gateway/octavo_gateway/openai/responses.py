"""`/v1/responses`: create, retrieve, read along from any event, cancel, delete. All that a response is lies with its
job, so any gateway answers for any response."""

from __future__ import annotations

import time
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from octavo import AsyncJob
from octavo.dialects.openai.responses.events import ResponseLog
from octavo.dialects.openai.responses.items import Item, check_outputs, stored
from octavo.dialects.openai.responses.record import Record, response_id
from octavo.dialects.openai.responses.requests import TABLE, ResponseRequest
from octavo.terms.sampling import SamplingDefaults
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.door import Entry, KeyHeader, Repeatable
from octavo_gateway.errors import ApiError
from octavo_gateway.http.body import apart, described, json_body
from octavo_gateway.http.streams import EventStream, Mailbox, unless_disconnected, unless_draining
from octavo_gateway.openai.stored import UNREAD, StoredResponse, conversation, find, referred
from octavo_gateway.openai.telling import Timed, check, tied, told, write
from octavo_gateway.state import Gateway

_MANY_ITEMS = 64  # of earlier responses: then they are as much work as a large body

STOPPING_S = 5.0
"""How long a cancellation is waited for: a worker stops within a step or two."""

router = APIRouter(prefix="/v1/responses", tags=["openai"])


@router.post("", openapi_extra=described(ResponseRequest), response_model=None)
async def create(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[ResponseRequest, Depends(json_body(ResponseRequest, TABLE))],
    idempotency_key: KeyHeader = None,
) -> Response:
    """Answer at once, as a stream of events, or in the background: `202` and the response, which is queued."""
    gateway: Gateway = request.state.gateway
    items = await _items(request, body, tenant)
    request.state.is_large |= len(items) > _MANY_ITEMS
    defaults = await _defaults(request, body)
    record = await apart(request, lambda: body.record(items, int(time.time()), defaults))
    asked, attachment, repeatable = await apart(
        request, lambda: (body.job(record), record.attachment(), Repeatable.of(idempotency_key, body))
    )
    (job,) = await gateway.door.enter(
        Entry(
            [asked],
            tenant,
            grammar_field="text.format",
            tool_schema="tools.{}.parameters",
            repeatable=repeatable,
            attachment=attachment,
            follow=body.stream or not body.background,
            background=bool(body.background),
        ),
        request,
    )
    record = await _first_record(gateway, job, record, tenant)
    if body.stream:
        return await _streamed(request, record, job, body, kept=repeatable is not None)
    if body.background:
        info = job.accepted or await job.info()
        url = f"{request.url.path}/{response_id(job.id)}"
        return JSONResponse(await StoredResponse(info, record).now(gateway.client), 202, {"Location": url})
    whole = _whole(gateway, record, job, body, kept=repeatable is not None)
    return JSONResponse(await unless_disconnected(request, whole))


async def _first_record(gateway: Gateway, job: AsyncJob, record: Record, tenant: str) -> Record:
    """The record of the request that made the job: a repeat of it names other ids, and another moment. Raises ApiError
    404 for a response that was deleted meanwhile."""
    if record.is_stored:
        return record if job.created else (await find(gateway.client, response_id(job.id), tenant)).record
    info = job.accepted or await job.info()
    return record.model_copy(update={"created_at": int(info.created_at)})


async def _defaults(request: Request, body: ResponseRequest) -> SamplingDefaults:
    """The model's, for what the response says of its sampling and the request does not."""
    if body.temperature is not None and body.top_p is not None:
        return SamplingDefaults()
    gateway: Gateway = request.state.gateway
    card = await gateway.cards.of(body.model)
    return SamplingDefaults() if card is None else card.sampling


async def _items(request: Request, body: ResponseRequest, tenant: str) -> list[Item]:
    """Input of a response: the conversation so far, and the new items. Raises InvalidRequest."""
    client = request.state.gateway.client
    earlier = await conversation(client, body.previous_response_id, tenant)
    known = {item["id"]: item for item in earlier}
    given = () if isinstance(body.input, str) else body.input
    names = dict.fromkeys(item.id for item in given if item.type == "item_reference" and item.id)
    found = await referred(client, names, known, tenant)
    new = await apart(request, lambda: stored(body.input, found.__getitem__))
    items = [*earlier, *(item for item in new if item["id"] not in known)]
    check_outputs(items)
    return items


async def _streamed(request: Request, record: Record, job: AsyncJob, body: ResponseRequest, *, kept: bool) -> Response:
    gateway: Gateway = request.state.gateway
    log = ResponseLog(record, job.id)
    events = told(gateway.client, log, job.id, _timed(gateway, job, body), refusable=not body.background)

    async def pump(mailbox: Mailbox) -> None:
        if body.background:
            await unless_draining(gateway, write(mailbox, log, events))
            return
        async with tied(gateway, log, job.id, kept=kept):
            await write(mailbox, log, events, refusable=True)

    return await EventStream(request, pump).begun()


async def _whole(
    gateway: Gateway, record: Record, job: AsyncJob, body: ResponseRequest, *, kept: bool
) -> dict[str, Any]:
    """The finished response. Leaving early cancels a job that is not kept. Raises ApiError for a job that failed."""
    log = ResponseLog(record, job.id, after=UNREAD)
    events = told(gateway.client, log, job.id, _timed(gateway, job, body))
    async with tied(gateway, log, job.id, kept=kept), aclosing(events):
        async for _ in events:
            pass
    check(log.ended)
    return log.final


def _timed(gateway: Gateway, job: AsyncJob, body: ResponseRequest) -> Timed | None:
    """The tokens of a repeat come from the log: they are neither counted nor timed again."""
    return Timed(gateway, body.model) if job.created else None


async def _own(request: Request, response_id: str, tenant: CurrentTenant) -> StoredResponse:
    gateway: Gateway = request.state.gateway
    return await find(gateway.client, response_id, tenant)


Own = Annotated[StoredResponse, Depends(_own)]


@router.get(
    "/{response_id}",
    response_model=None,
    response_class=StreamingResponse,
    responses={200: {"content": {"application/json": {}, "text/event-stream": {}}}},
)
async def retrieve(
    request: Request,
    found: Own,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, description="Continue behind the event of this number.")] = None,
) -> Response:
    """The response as it stands, or its events: those there are, then those to come. `400` for `starting_after` without
    `stream`."""
    gateway: Gateway = request.state.gateway
    if not stream:
        if starting_after is not None:
            raise ApiError(400, "starting_after needs stream=true", code="invalid_value", param="starting_after")
        return JSONResponse(await found.now(gateway.client))
    log = ResponseLog(found.record, found.info.id, after=-1 if starting_after is None else starting_after)
    events = told(gateway.client, log, found.info.id)

    async def pump(mailbox: Mailbox) -> None:
        await unless_draining(gateway, write(mailbox, log, events))

    return EventStream(request, pump)


@router.post("/{response_id}/cancel", response_model=None)
async def stop(request: Request, found: Own) -> Response:
    """End a response; one that is over stays as it is. What it generated so far is kept."""
    client = request.state.gateway.client
    status, info = await client.cancel_own(found.info.id, tenant=found.info.tenant)
    if not status.is_terminal:
        with suppress(TimeoutError):
            await client.result(found.info.id, timeout=STOPPING_S)
        info = await client.info(found.info.id)
    return JSONResponse(await StoredResponse(info, found.record).now(client))


@router.delete("/{response_id}")
async def delete(request: Request, found: Own) -> dict[str, Any]:
    """Forget a response, its input and what it generated. One that goes on is cancelled."""
    await request.state.gateway.client.cancel_own(found.info.id, tenant=found.info.tenant, erase=True)
    return {"id": response_id(found.info.id), "object": "response", "deleted": True}


@router.get("/{response_id}/input_items")
async def input_items(
    found: Own,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> dict[str, Any]:
    """Input items, those of earlier responses included; `after` is the last id of the previous page. `400` for an
    unknown `after`."""
    items = found.record.items if order == "asc" else found.record.items[::-1]
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise ApiError(400, "after is the id of no input item", code="invalid_value", param="after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > limit,
    }
