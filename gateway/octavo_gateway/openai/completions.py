"""`POST /v1/completions`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from octavo.dialects.events import json_line
from octavo.dialects.openai.answers import completion_head, echoed
from octavo.dialects.openai.logprobs import CompletionLogprobs
from octavo.dialects.openai.requests import TABLES, CompletionRequest
from octavo.terms.messages import Chunk
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.door import KeyHeader, Repeatable
from octavo_gateway.http.body import apart, described, json_body
from octavo_gateway.openai.endpoint import answered, streamed
from octavo_gateway.openai.frames import Frames
from octavo_gateway.openai.generation import Generation

router = APIRouter(tags=["openai"])


@router.post("/v1/completions", openapi_extra=described(CompletionRequest), response_model=None)
async def completions(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest, TABLES[CompletionRequest]))],
    idempotency_key: KeyHeader = None,
) -> Response:
    """Continue one prompt or several, at once or as a stream. Choice `i * n + j` is sequence j of prompt i."""
    jobs, repeatable = await apart(request, lambda: (body.jobs(), Repeatable.of(idempotency_key, body)))
    generation = Generation(request.state.gateway, jobs, tenant, body.grammar_field, repeatable)
    await generation.submit(request)
    if body.stream:
        return await streamed(request, generation, CompletionStream(generation, body), body)
    return await answered(request, generation, body)


class CompletionStream:
    """Chunks of a streamed completion."""

    def __init__(self, generation: Generation, body: CompletionRequest) -> None:
        head = completion_head(body, generation.job_ids[0], generation.created)
        self.frames = Frames(head, usage=body.include_usage)
        self._body = body
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._begun: set[int] = set()

    def choices(self, prompt_index: int, chunk: Chunk) -> list[str]:
        """Deltas of a chunk as JSON: none while text is held back."""
        index = prompt_index * self._body.n + chunk.index
        text = chunk.text
        if index not in self._begun:
            self._begun.add(index)
            text = echoed(self._body, prompt_index, None) + text
        logprobs = "null"
        if chunk.logprobs is not None and self._body.logprobs is not None:
            taken = self._taken(index, chunk)
            logprobs = json.dumps(taken) if taken["tokens"] else logprobs
        if logprobs == "null" and not text and chunk.finish_reason is None:
            return []
        reason = "null" if chunk.finish_reason is None else json_line(chunk.finish_reason)
        return [f'{{"index":{index},"text":{json_line(text)},"logprobs":{logprobs},"finish_reason":{reason}}}']

    def _taken(self, index: int, chunk: Chunk) -> dict[str, Any]:
        logprobs = self._logprobs.setdefault(index, CompletionLogprobs(self._body.stop_strings))
        logprobs.add(chunk)
        return logprobs.take()
