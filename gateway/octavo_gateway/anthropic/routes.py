"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from octavo.dialects.anthropic.body import TABLES, CountRequest, MessagesRequest
from octavo.dialects.anthropic.events import Event, MessageEvents, whole_message
from octavo.dialects.events import json_line
from octavo.dialects.openai.answers import answer_parser
from octavo.terms.errors import OctavoError
from octavo.terms.messages import Chunk
from octavo_gateway.anthropic.errors import error_body
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.door import KeyHeader, Repeatable
from octavo_gateway.errors import ApiError, of_exception
from octavo_gateway.http.body import apart, described, json_body
from octavo_gateway.http.streams import EventStream, Mailbox, unless_disconnected
from octavo_gateway.openai.generation import Generation
from octavo_gateway.state import Gateway
from octavo_gateway.tokenizer import known_model, tokenized

router = APIRouter(prefix="/v1/messages", tags=["anthropic"])


@router.post("", openapi_extra=described(MessagesRequest), response_model=None)
async def messages(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[MessagesRequest, Depends(json_body(MessagesRequest, TABLES[MessagesRequest]))],
    idempotency_key: KeyHeader = None,
) -> Response:
    """Answer a conversation, at once or as a stream. A client that disconnects cancels its job, unless it may repeat
    its request."""
    completion, repeatable = await apart(request, lambda: (body.completion(), Repeatable.of(idempotency_key, body)))
    jobs = await apart(request, completion.jobs)
    generation = Generation(request.state.gateway, jobs, tenant, body.grammar_field, repeatable)
    await generation.submit(request)
    (job_id,) = generation.job_ids
    answer = MessageEvents(job_id, body.model, answer_parser(completion, job_id), body.stop_sequences)
    if body.stream:
        return await EventStream(request, lambda mailbox: _pump(generation, answer, mailbox)).begun()
    events: list[Event] = []

    async def on_chunk(_: int, chunk: Chunk) -> None:
        events.extend(answer.add(chunk))

    await unless_disconnected(request, generation.follow(on_chunk))
    return JSONResponse(whole_message([*events, *answer.end(generation.usage)]))


@router.post("/count_tokens", openapi_extra=described(CountRequest))
async def count_tokens(
    request: Request,
    _: CurrentTenant,
    body: Annotated[CountRequest, Depends(json_body(CountRequest, TABLES[CountRequest]))],
) -> dict[str, int]:
    """The tokens of the prompt that these messages would be."""
    gateway: Gateway = request.state.gateway
    (job,) = await apart(request, lambda: body.completion().jobs())
    await known_model(request, job.model)
    return {"input_tokens": len((await tokenized(gateway, job)).token_ids)}


async def _pump(generation: Generation, answer: MessageEvents, mailbox: Mailbox) -> None:
    async def send(events: list[Event]) -> None:
        for event in events:
            await mailbox.put(_frame(event["type"], event))

    async def on_chunk(_: int, chunk: Chunk) -> None:
        await send(answer.add(chunk))

    try:
        await generation.follow(on_chunk)
    except (ApiError, OctavoError) as error:
        if not mailbox.used:
            raise
        found = of_exception(error)
        await mailbox.put(_frame("error", error_body(found.status, found.message)))
        return
    await send(answer.end(generation.usage))


def _frame(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json_line(data)}\n\n".encode()
