"""The job API: submit, look, stream from any token, cancel. A job belongs to the queue, not to a connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import StringConstraints

from octavo.dialects.events import event_bytes
from octavo.dialects.logprobs import logprobs_json
from octavo.queue import wire
from octavo.terms.errors import InvalidRequest, JobNotFound, MalformedMessage
from octavo.terms.messages import JobStatus, TokenLogprob
from octavo.terms.models import JobInfo, JobRequest, Result, SequenceResult
from octavo.terms.positions import Position
from octavo_gateway.auth import Caller, CurrentCaller
from octavo_gateway.door import Entry, KeyHeader, Repeatable
from octavo_gateway.errors import ApiError
from octavo_gateway.http.body import JSON, MSGPACK, apart, described, media_type, parsed, read_body
from octavo_gateway.http.parts import JsonInParts
from octavo_gateway.http.streams import EventStream, Mailbox, unless_draining
from octavo_gateway.jobs.owned import OwnJob, check_id, not_found
from octavo_gateway.jobs.readers import CurrentReader, Reader, ReadJob
from octavo_gateway.state import Gateway

RETRY = b"retry: 1000\n\n"

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Place = Annotated[str, StringConstraints(pattern=r"^\d{1,15}(-[01]|\.[0-9a-f]{8})?$")]


async def _job_request(request: Request) -> JobRequest:
    kind = media_type(request, JSON, MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
    body = await read_body(request, request.state.gateway.settings.max_body_bytes)
    try:
        return await apart(request, lambda: parsed(JobRequest, body) if kind == JSON else wire.decode_request(body))
    except MalformedMessage as error:
        raise InvalidRequest(error.message, code=error.code) from None


@router.post("", status_code=202, openapi_extra=described(JobRequest, JSON, MSGPACK))
async def submit(
    request: Request,
    caller: CurrentCaller,
    job: Annotated[JobRequest, Depends(_job_request)],
    idempotency_key: KeyHeader = None,
) -> Response:
    """Accept a job: `202` and its address. The same `Idempotency-Key` and body again: `200` and the same job."""
    gateway: Gateway = request.state.gateway
    repeatable = None if idempotency_key is None else Repeatable(idempotency_key)
    (handle,) = await gateway.door.enter(Entry([job], caller.tenant, repeatable=repeatable, follow=False), request)
    info = handle.accepted or await handle.info()
    body = job_json(info, caller)
    return JSONResponse(body, 202 if handle.created else 200, {"Location": body["links"]["self"]})


@router.get("")
async def index(
    request: Request,
    caller: CurrentCaller,
    status: JobStatus | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: str | None = None,
    of_batches: bool = False,
) -> dict[str, Any]:
    """The tenant's jobs, newest first; `after` is the last id of the previous page. `of_batches`: those of batches,
    which are left out else."""
    gateway: Gateway = request.state.gateway
    if after is not None:
        check_id(after)
    jobs = await gateway.client.jobs(
        tenant=caller.tenant, status=status, limit=limit + 1, after=after, of_batches=of_batches
    )
    return {"object": "list", "data": [job_json(info, caller) for info in jobs[:limit]], "has_more": len(jobs) > limit}


@router.get("/{job_id}")
async def show(info: OwnJob, caller: CurrentCaller) -> dict[str, Any]:
    """Where the job stands now."""
    return job_json(info, caller)


@router.get("/{job_id}/result")
async def result(request: Request, own: OwnJob, caller: CurrentCaller) -> Response:
    """The finished job with all its sequences; `202` and the job while it is not finished."""
    gateway: Gateway = request.state.gateway
    async with gateway.loading:
        info, found = await gateway.client.outcome(own.id)
    if found is None:
        return JSONResponse(job_json(info, caller), 202)
    value = _result_json(found)
    del found  # while it is sent, its parts alone are there

    async def again() -> dict[str, Any]:
        async with gateway.loading:
            _, found = await gateway.client.outcome(own.id)
        if found is None:
            raise not_found(own.id)
        return _result_json(found)

    return JsonInParts(request, value, again)


@router.delete("/{job_id}", status_code=202)
async def cancel(request: Request, job_id: str, caller: CurrentCaller) -> Response:
    """Ask for the job's end: `202`, or `200` when it is over already. A running job stops within a step or two. `404`
    for an unknown job."""
    check_id(job_id)
    gateway: Gateway = request.state.gateway
    try:
        status, info = await gateway.client.cancel_own(job_id, tenant=caller.tenant)
    except JobNotFound:
        raise not_found(job_id) from None
    return JSONResponse(job_json(info, caller), 200 if status.is_terminal else 202)


@router.get(
    "/{job_id}/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, 204: {"description": "The last event was seen already."}},
)
async def stream(
    request: Request,
    info: ReadJob,
    reader: CurrentReader,
    after: Annotated[Place | None, Query(description="Continue behind the event with this id.")] = None,
    last_event_id: Annotated[Place | None, Header(description="As `after`; a reconnecting browser sends it.")] = None,
) -> Response:
    """Tokens as server-sent events `token`, then one `done` or `error`; of a beam search, `progress` before them.

    The `id` of a token event is the number of tokens so far, of a job with several sequences followed by the name of
    the claim that wrote them; that of the last event is `<tokens>-1`. Either resumes. `stream_reset`: the position does
    not hold any more; the stream comes again from its beginning.
    `204` when the last event was seen already. The stream of a read token ends when that expires. Raises `ApiError`
    for a place beyond the end.
    """
    gateway: Gateway = request.state.gateway
    place, end_seen = _position(last_event_id or after or "0")
    if info.status.is_terminal:
        if place.offset > info.tokens:
            raise ApiError(400, f"the job ended after {info.tokens} tokens", code="invalid_value", param="after")
        if end_seen:
            return Response(status_code=204)
    return EventStream(request, lambda mailbox: _pump(gateway, info.id, place, mailbox, reader))


async def _pump(gateway: Gateway, job_id: str, after: Position, mailbox: Mailbox, reader: Reader) -> None:
    await mailbox.put(RETRY)
    with suppress(TimeoutError):
        async with asyncio.timeout(reader.left_s):
            # A gateway that shuts down ends its streams between two events; the client resumes at another one.
            await unless_draining(gateway, _follow(gateway, job_id, after, mailbox))


async def _follow(gateway: Gateway, job_id: str, after: Position, mailbox: Mailbox) -> None:
    offset = after.offset
    try:
        async with aclosing(gateway.client.events(job_id, str(after))) as events:
            async for event in events:
                await mailbox.put(event_bytes(event))
                offset = event.offset
    except (JobNotFound, MalformedMessage) as error:  # the server has lost it for good, or something has damaged it
        data = {
            "offset": offset,
            "status": None,
            "usage": None,
            "error": {"code": error.code, "message": error.message},
        }
        await mailbox.put(f"event: error\ndata: {json.dumps(data)}\n\n".encode())


def _position(text: str) -> tuple[Position, bool]:
    place, _, end = text.partition("-")
    return Position.of(place), end == "1"


def job_json(info: JobInfo, caller: Caller) -> dict[str, Any]:
    """A job as the API shows it to this caller."""
    self = f"/v1/jobs/{info.id}"
    links = {"self": self, "stream": f"{self}/stream", "log": f"{self}/log", "result": f"{self}/result"}
    worker = caller.shown_worker(info.worker) if info.worker is not None else None
    told = info.model_dump(mode="json")
    for attempt in told["history"]:
        attempt["worker"] = attempt["worker"] and caller.shown_worker(attempt["worker"])
    return {"object": "job", **told, "worker": worker, "links": links}


def _result_json(result: Result) -> dict[str, Any]:
    """A result for `pieces`: what may be long is made item by item."""
    body = result.model_dump(mode="json", exclude={"sequences", "prompt_logprobs", "prompt_token_ids"})
    return {
        "object": "job.result",
        **body,
        "prompt_token_ids": None if result.prompt_token_ids is None else iter(result.prompt_token_ids),
        "sequences": map(_sequence_json, result.sequences),
        "prompt_logprobs": _logprobs(result.prompt_logprobs),
    }


def _sequence_json(sequence: SequenceResult) -> dict[str, Any]:
    body = sequence.model_dump(mode="json", exclude={"logprobs", "token_ids"})
    return {**body, "token_ids": iter(sequence.token_ids), "logprobs": _logprobs(sequence.logprobs)}


def _logprobs(logprobs: Sequence[TokenLogprob] | None) -> Iterator[Any] | None:
    return None if logprobs is None else (one for item in logprobs for one in logprobs_json([item]) or ())
