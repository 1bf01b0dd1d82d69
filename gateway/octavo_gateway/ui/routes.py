"""`/v1/chat`: what `useChat({resume: true})` asks for. The answer of a chat is a job: it goes on without readers, and
any gateway streams it from its beginning."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import StringConstraints

from octavo import AsyncJob
from octavo.dialects.events import json_line
from octavo.dialects.ui.body import UiChatRequest
from octavo.dialects.ui.parts import Part, UiParts
from octavo.dialects.ui.record import ChatRecord
from octavo.terms.errors import JobNotFound
from octavo.terms.messages import JobStatus
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.door import Entry, KeyHeader, Repeatable
from octavo_gateway.errors import of_job
from octavo_gateway.http.body import apart, described, json_body
from octavo_gateway.http.streams import EventStream, Mailbox, unless_draining
from octavo_gateway.openai.frames import DONE
from octavo_gateway.state import Gateway

HEADERS = {"X-Vercel-AI-UI-Message-Stream": "v1"}
LEAVING: Part = {"type": "error", "errorText": "this gateway is shutting down: resume the stream, the answer goes on"}

router = APIRouter(prefix="/v1/chat", tags=["chat UI"])

ChatPath = Annotated[str, Path(), StringConstraints(max_length=255)]
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}},
    204: {"description": "Nothing runs for this chat."},
}


@router.post("", openapi_extra=described(UiChatRequest), response_class=StreamingResponse)
async def answer(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[UiChatRequest, Depends(json_body(UiChatRequest))],
    idempotency_key: KeyHeader = None,
) -> Response:
    """Answer a chat as a UI message stream. The answer goes on if the client leaves; `GET` resumes it."""
    gateway: Gateway = request.state.gateway
    completion, repeatable = await apart(request, lambda: (body.completion(), Repeatable.of(idempotency_key, body)))
    jobs = await apart(request, completion.jobs)
    record = ChatRecord.of(completion)
    (handle,) = await gateway.door.enter(
        Entry(
            jobs,
            tenant,
            grammar_field=completion.grammar_field,
            repeatable=repeatable,
            attachment=record.encode(),
        ),
        request,
    )
    await _note(gateway, body.id, handle, tenant)
    return await _streamed(request, handle.id, record)


async def _note(gateway: Gateway, chat_id: str, job: AsyncJob, tenant: str) -> None:
    """Make a job the latest of its chat, unless it is of an earlier request that was repeated. Ids are in the order of
    their times."""
    latest = None if job.created else await gateway.client.chat_job(chat_id, tenant=tenant)
    if latest is None or latest <= job.id:
        await gateway.client.note_chat(chat_id, job.id, tenant=tenant)


@router.get("/{chat_id:path}/stream", response_class=StreamingResponse, responses=_STREAM)
async def resume(request: Request, tenant: CurrentTenant, chat_id: ChatPath) -> Response:
    """The answer that is being generated, from its beginning; `204` when there is none."""
    running = await _running_job(request, tenant, chat_id)
    if running is None:
        return Response(status_code=204)
    job_id, attached = running
    return await _streamed(request, job_id, ChatRecord.decode(attached))


@router.delete("/{chat_id:path}/stream", status_code=202, responses=_STREAM)
async def stop(request: Request, tenant: CurrentTenant, chat_id: ChatPath) -> Response:
    """Stop the answer that is being generated, which `stop()` of `useChat` does not; `204` when there is none."""
    running = await _running_job(request, tenant, chat_id)
    if running is None:
        return Response(status_code=204)
    await request.state.gateway.client.cancel_own(running[0], tenant=tenant)
    return Response(status_code=202)


async def _running_job(request: Request, tenant: str, chat_id: str) -> tuple[str, bytes | None] | None:
    """The job that answers a chat, and what is attached to it."""
    gateway: Gateway = request.state.gateway
    try:
        job_id = await gateway.client.chat_job(chat_id, tenant=tenant)
        if job_id is None:
            return None
        info, attached = await gateway.client.attachment(job_id)
    except JobNotFound:  # the server has lost it
        return None
    return None if info.status.is_terminal else (job_id, attached)


async def _streamed(request: Request, job_id: str, record: ChatRecord) -> EventStream:
    gateway: Gateway = request.state.gateway
    stream = EventStream(request, lambda mailbox: _pump(gateway, job_id, record, mailbox), HEADERS)
    return await stream.begun()


async def _pump(gateway: Gateway, job_id: str, record: ChatRecord, mailbox: Mailbox) -> None:
    """Raises ApiError for a job that failed before its first token, such as one whose prompt is too long."""
    if not await unless_draining(gateway, _follow(gateway, job_id, record, mailbox)):
        await mailbox.put(_frame(LEAVING))


async def _follow(gateway: Gateway, job_id: str, record: ChatRecord, mailbox: Mailbox) -> None:
    parts = UiParts(job_id, record.parser(job_id))
    async with aclosing(gateway.client.events(job_id)) as events:
        async for event in events:
            if event.end is not None and event.end.status is JobStatus.FAILED and not mailbox.used:
                raise of_job(event.end.status, event.end.error)
            for part in parts.add(event):
                await mailbox.put(_frame(part))
    await mailbox.put(DONE)


def _frame(part: Part) -> bytes:
    return f"data: {json_line(part)}\n\n".encode()
