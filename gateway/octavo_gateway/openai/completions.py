"""`POST /v1/completions`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from octavo.models import Chunk, Terminal
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.body import described, json_body
from octavo_gateway.openai.endpoint import collected, streamed
from octavo_gateway.openai.frames import Frames
from octavo_gateway.openai.generation import Generation
from octavo_gateway.openai.logprobs import CompletionLogprobs
from octavo_gateway.openai.schemas import CompletionRequest, usage_json
from octavo_gateway.streams import quote

router = APIRouter(tags=["openai"])


@router.post("/v1/completions", openapi_extra=described(CompletionRequest), response_model=None)
async def completions(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[CompletionRequest, Depends(json_body(CompletionRequest))],
) -> Response:
    """Continue one prompt or several, at once or as a stream. Choice `i * n + j` is sequence j of prompt i."""
    generation = Generation(request.state.gateway, body.jobs(), tenant)
    await generation.submit()
    if body.stream:
        return await streamed(request, generation, CompletionStream(generation, body), body)
    chunks: list[list[Chunk]] = [[] for _ in range(len(body.prompts) * body.n)]
    await collected(request, generation, lambda i, chunk: chunks[i * body.n + chunk.index].append(chunk))
    return JSONResponse(
        {
            **_head(generation, body),
            "choices": [
                {"index": i, **_choice_json(body, i // body.n, generation.ends[i // body.n], parts)}
                for i, parts in enumerate(chunks)
            ],
            "usage": usage_json(generation.usage),
        }
    )


def _head(generation: Generation, body: CompletionRequest) -> dict[str, Any]:
    return {
        "id": f"cmpl-{generation.job_ids[0]}",
        "object": "text_completion",
        "created": generation.created,
        "model": body.model,
        "system_fingerprint": None,
    }


def _choice_json(
    body: CompletionRequest, prompt_index: int, end: Terminal | None, parts: list[Chunk]
) -> dict[str, Any]:
    echoed = _echo(body, prompt_index, end)
    logprobs = CompletionLogprobs()
    if body.echo and end is not None and end.prompt_logprobs is not None:
        logprobs.add_prompt(end.prompt_logprobs, echoed)
    else:
        logprobs.skip(len(echoed))
    for chunk in parts:
        logprobs.add(chunk)
    reasons = [chunk.finish_reason for chunk in parts if chunk.finish_reason is not None]
    return {
        "text": echoed + "".join(chunk.text for chunk in parts),
        "logprobs": None if body.logprobs is None else logprobs.take(),
        "finish_reason": reasons[-1] if reasons else "length",  # max_tokens 0 generates nothing
    }


def _echo(body: CompletionRequest, prompt_index: int, end: Terminal | None) -> str:
    if not body.echo:
        return ""
    prompt = body.prompts[prompt_index]
    if isinstance(prompt, str):
        return prompt
    tokens = (end.prompt_logprobs if end is not None else None) or ()
    return b"".join(item.token for item in tokens).decode("utf-8", "replace")


class CompletionStream:
    """Chunks of a streamed completion."""

    def __init__(self, generation: Generation, body: CompletionRequest) -> None:
        self.frames = Frames(_head(generation, body), usage=body.include_usage)
        self._body = body
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._begun: set[int] = set()

    def choices(self, prompt_index: int, chunk: Chunk) -> list[str]:
        """What a chunk adds, as JSON: nothing while text is held back."""
        index = prompt_index * self._body.n + chunk.index
        text = chunk.text
        if index not in self._begun:
            self._begun.add(index)
            text = _echo(self._body, prompt_index, None) + text
        logprobs = "null"
        if chunk.logprobs is not None and self._body.logprobs is not None:
            logprobs = json.dumps(self._taken(index, chunk))
        elif not text and chunk.finish_reason is None:
            return []
        reason = "null" if chunk.finish_reason is None else quote(chunk.finish_reason)
        return [f'{{"index":{index},"text":{quote(text)},"logprobs":{logprobs},"finish_reason":{reason}}}']

    def _taken(self, index: int, chunk: Chunk) -> dict[str, Any]:
        logprobs = self._logprobs.setdefault(index, CompletionLogprobs())
        logprobs.add(chunk)
        return logprobs.take()
