"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from octavo.dialects.events import json_line
from octavo.dialects.openai.answers import answer_parser, chat_head
from octavo.dialects.openai.choices import calls_tools, delta_json, finish_reason
from octavo.dialects.openai.logprobs import ToldLogprobs, chat_logprobs
from octavo.dialects.openai.requests import TABLES, ChatCompletionRequest
from octavo.dialects.parsing import ContentDelta, Delta, ReasoningDelta
from octavo.terms.messages import Chunk
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.door import KeyHeader, Repeatable
from octavo_gateway.http.body import apart, described, json_body
from octavo_gateway.openai.endpoint import answered, streamed
from octavo_gateway.openai.frames import Frames
from octavo_gateway.openai.generation import Generation

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", openapi_extra=described(ChatCompletionRequest), response_model=None)
async def chat_completions(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest, TABLES[ChatCompletionRequest]))],
    idempotency_key: KeyHeader = None,
) -> Response:
    """Answer a conversation, at once or as a stream."""
    jobs, repeatable = await apart(request, lambda: (body.jobs(), Repeatable.of(idempotency_key, body)))
    generation = Generation(request.state.gateway, jobs, tenant, body.grammar_field, repeatable)
    await generation.submit(request)
    if body.stream:
        return await streamed(request, generation, ChatStream(generation, body), body)
    return await answered(request, generation, body)


class ChatStream:
    """Chunks of a streamed answer."""

    def __init__(self, generation: Generation, body: ChatCompletionRequest) -> None:
        head = chat_head(body, generation.job_ids[0], generation.created, "chat.completion.chunk")
        self.frames = Frames(head, usage=body.include_usage)
        self._parser = answer_parser(body, generation.job_ids[0])
        self._with_reasoning = body.shows_reasoning
        self._begun: set[int] = set()
        self._called: set[int] = set()
        self._logprobs = [ToldLogprobs(body.stop_strings) for _ in range(body.n if body.logprobs else 0)]

    def choices(self, _: int, chunk: Chunk) -> list[str]:
        """Deltas of a chunk as JSON: the role once, its text, reasoning and calls if any, the finish reason at the
        end. Log-probabilities come with the first of them: they are of tokens, those of markers included."""
        found = []
        index = chunk.index
        if index not in self._begun:
            self._begun.add(index)
            found.append(_choice(index, '{"role":"assistant","content":""}'))
        deltas = self._parser.feed(chunk)
        if calls_tools(deltas):
            self._called.add(index)
        parts = [_delta(delta) for delta in deltas if self._with_reasoning or not isinstance(delta, ReasoningDelta)]
        told = [item for item, _ in self._logprobs[index].add(chunk)] if self._logprobs else []
        logprobs = json.dumps(chat_logprobs(told)) if told else "null"
        if told and not parts:
            parts = ['{"content":""}']
        for part in parts:
            found.append(_choice(index, part, logprobs))
            logprobs = "null"
        if chunk.finish_reason is not None:
            reason = finish_reason(chunk.finish_reason, called=index in self._called)
            found.append(_choice(index, "{}", reason=json_line(reason)))
        return found


def _delta(delta: Delta) -> str:
    if isinstance(delta, ContentDelta):
        return f'{{"content":{json_line(delta.text)}}}'
    return json_line(delta_json(delta))


def _choice(index: int, delta: str, logprobs: str = "null", reason: str = "null") -> str:
    return f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
