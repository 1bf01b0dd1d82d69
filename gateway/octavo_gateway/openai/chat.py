"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from octavo.models import Chunk, TokenLogprob
from octavo_gateway.auth import CurrentTenant
from octavo_gateway.body import described, json_body
from octavo_gateway.openai.endpoint import collected, streamed
from octavo_gateway.openai.frames import Frames
from octavo_gateway.openai.generation import Generation
from octavo_gateway.openai.logprobs import chat_logprobs
from octavo_gateway.openai.schemas import ChatCompletionRequest, usage_json
from octavo_gateway.streams import quote

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", openapi_extra=described(ChatCompletionRequest), response_model=None)
async def chat_completions(
    request: Request,
    tenant: CurrentTenant,
    body: Annotated[ChatCompletionRequest, Depends(json_body(ChatCompletionRequest))],
) -> Response:
    """Answer a conversation, at once or as a stream."""
    generation = Generation(request.state.gateway, body.jobs(), tenant)
    await generation.submit()
    if body.stream:
        return await streamed(request, generation, ChatStream(generation, body), body)
    answers = [_Answer() for _ in range(body.n)]
    await collected(request, generation, lambda _, chunk: answers[chunk.index].add(chunk))
    return JSONResponse(
        {
            **_head(generation, body, "chat.completion"),
            "choices": [answer.choice(i, body.logprobs) for i, answer in enumerate(answers)],
            "usage": usage_json(generation.usage),
        }
    )


def _head(generation: Generation, body: ChatCompletionRequest, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{generation.job_ids[0]}",
        "object": kind,
        "created": generation.created,
        "model": body.model,
        "system_fingerprint": None,
    }


class _Answer:
    """One sequence of a whole answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._finish_reason: str | None = None

    def add(self, chunk: Chunk) -> None:
        self._texts.extend(chunk.texts)
        self._logprobs.extend(chunk.logprobs or ())
        self._finish_reason = chunk.finish_reason or self._finish_reason

    def choice(self, index: int, logprobs: bool) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(self._texts), "refusal": None},
            "logprobs": chat_logprobs(self._logprobs) if logprobs else None,
            "finish_reason": self._finish_reason,
        }


class ChatStream:
    """Chunks of a streamed answer."""

    def __init__(self, generation: Generation, body: ChatCompletionRequest) -> None:
        self.frames = Frames(_head(generation, body, "chat.completion.chunk"), usage=body.include_usage)
        self._begun: set[int] = set()

    def choices(self, _: int, chunk: Chunk) -> list[str]:
        """What a chunk adds, as JSON: the role once, its text if any, the finish reason at the end."""
        found = []
        index = chunk.index
        if index not in self._begun:
            self._begun.add(index)
            found.append(_choice(index, '{"role":"assistant","content":""}'))
        text = chunk.text
        if text or chunk.logprobs:
            logprobs = json.dumps(chat_logprobs(chunk.logprobs)) if chunk.logprobs else "null"
            found.append(_choice(index, f'{{"content":{quote(text)}}}', logprobs))
        if chunk.finish_reason is not None:
            found.append(_choice(index, "{}", reason=quote(chunk.finish_reason)))
        return found


def _choice(index: int, delta: str, logprobs: str = "null", reason: str = "null") -> str:
    return f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
