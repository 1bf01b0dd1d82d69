"""The two ways to answer an OpenAI-style request: in one piece, or as a stream."""

from __future__ import annotations

from typing import Protocol

from fastapi import Request
from fastapi.responses import JSONResponse

from octavo.dialects.openai.answers import CompletedJob, answer, usage_json
from octavo.dialects.openai.requests import ChatCompletionRequest, CompletionRequest, GenerationBody
from octavo.terms.errors import OctavoError
from octavo.terms.messages import Chunk, Usage
from octavo_gateway.errors import ApiError, of_exception
from octavo_gateway.http.streams import EventStream, Mailbox, unless_disconnected
from octavo_gateway.openai.frames import DONE, Frames, error_frame
from octavo_gateway.openai.generation import Generation


class Chunks(Protocol):
    """How an endpoint writes its stream."""

    frames: Frames

    def choices(self, prompt_index: int, chunk: Chunk) -> list[str]: ...


async def answered(
    request: Request, generation: Generation, body: ChatCompletionRequest | CompletionRequest
) -> JSONResponse:
    """The whole answer. A client that disconnects cancels the jobs. Raises ApiError, ClientGone."""
    chunks: list[list[Chunk]] = [[] for _ in generation.job_ids]

    async def on_chunk(prompt_index: int, chunk: Chunk) -> None:
        chunks[prompt_index].append(chunk)

    await unless_disconnected(request, generation.follow(on_chunk))
    jobs = [
        CompletedJob(job_id, chunks[i], end)
        for i, (job_id, end) in enumerate(zip(generation.job_ids, generation.ends, strict=True))
        if end is not None
    ]
    return JSONResponse(answer(body, jobs, generation.created))


async def streamed(request: Request, generation: Generation, chunks: Chunks, body: GenerationBody) -> EventStream:
    """A stream. Its status waits for the first token, so that a prompt that the worker refuses is a 400. It waits
    `keep_alive` seconds at most: proxies close silent connections."""
    return await EventStream(request, lambda mailbox: _pump(generation, chunks, body, mailbox)).begun()


async def _pump(generation: Generation, chunks: Chunks, body: GenerationBody, mailbox: Mailbox) -> None:
    tokens = 0

    async def on_chunk(prompt_index: int, chunk: Chunk) -> None:
        nonlocal tokens
        tokens += len(chunk.token_ids)
        usage = (
            usage_json(Usage(prompt_tokens=generation.usage.prompt_tokens, completion_tokens=tokens))
            if body.continuous_usage
            else None
        )
        for choice in chunks.choices(prompt_index, chunk):
            await mailbox.put(chunks.frames.choice(choice, usage))

    try:
        await generation.follow(on_chunk)
    except (ApiError, OctavoError) as error:
        if not mailbox.used:
            raise
        await mailbox.put(error_frame(of_exception(error)))
        return
    if body.include_usage:
        await mailbox.put(chunks.frames.usage(usage_json(generation.usage)))
    await mailbox.put(DONE)
