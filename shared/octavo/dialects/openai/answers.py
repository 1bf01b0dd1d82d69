"""Whole answers in OpenAI's shape, from what the jobs of a request generated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.openai.choices import finish_reason, message_json
from octavo.dialects.openai.logprobs import CompletionLogprobs, ToldLogprobs, chat_logprobs
from octavo.dialects.openai.requests import ChatCompletionRequest, CompletionRequest
from octavo.terms.messages import Chunk, Terminal, Usage


@dataclass(frozen=True)
class CompletedJob:
    """All that one job generated, in the order of its stream."""

    id: str
    chunks: Sequence[Chunk]
    end: Terminal


def answer(
    body: ChatCompletionRequest | CompletionRequest, jobs: Sequence[CompletedJob], created: int
) -> dict[str, Any]:
    """The answer of `body`, whose `jobs()` these are, completed. `created` is in seconds since the epoch."""
    if isinstance(body, ChatCompletionRequest):
        return _chat_answer(body, jobs[0], created)
    return _completion_answer(body, jobs, created)


def chat_head(body: ChatCompletionRequest, job_id: str, created: int, kind: str) -> dict[str, Any]:
    """The fields that begin an answer or a chunk of one; `kind` says which."""
    return _head(body.model, f"chatcmpl-{job_id}", created, kind)


def completion_head(body: CompletionRequest, job_id: str, created: int) -> dict[str, Any]:
    """The fields that begin an answer, or a chunk of one: the same for both. `job_id` is that of the first prompt."""
    return _head(body.model, f"cmpl-{job_id}", created, "text_completion")


def echoed(body: CompletionRequest, prompt_index: int, end: Terminal | None) -> str:
    """The prompt as the text in front of its answer, if asked for. `end` is needed for a prompt of token ids."""
    if not body.echo:
        return ""
    prompt = body.prompts[prompt_index]
    if isinstance(prompt, str):
        return prompt
    tokens = (end.prompt_logprobs if end is not None else None) or ()
    return b"".join(item.token for item in tokens).decode("utf-8", "replace")


def total_usage(ends: Iterable[Terminal]) -> Usage:
    """Usage of all jobs of a request."""
    usages = [end.usage for end in ends]
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _head(model: str, answer_id: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": created, "model": model, "system_fingerprint": None}


def _chat_answer(body: ChatCompletionRequest, job: CompletedJob, created: int) -> dict[str, Any]:
    return {
        **chat_head(body, job.id, created, "chat.completion"),
        "choices": [_chat_choice(body, job.id, i, chunks) for i, chunks in enumerate(_sequences(job, body.n))],
        "usage": usage_json(job.end.usage),
    }


def answer_parser(body: ChatCompletionRequest, job_id: str) -> AnswerParser:
    """Takes the answer of a chat apart."""
    return AnswerParser(job_id, body.offered, parallel=body.takes_several)


def _chat_choice(body: ChatCompletionRequest, job_id: str, index: int, chunks: Sequence[Chunk]) -> dict[str, Any]:
    parsed = answer_parser(body, job_id).parse(chunks)
    told = ToldLogprobs(body.stop_strings)
    logprobs = [item for chunk in chunks for item, _ in told.add(chunk)]
    return {
        "index": index,
        "message": message_json(parsed, with_reasoning=body.shows_reasoning),
        "logprobs": chat_logprobs(logprobs) if body.logprobs else None,
        "finish_reason": finish_reason(_finish_reason(chunks), called=bool(parsed.calls)),
    }


def _completion_answer(body: CompletionRequest, jobs: Sequence[CompletedJob], created: int) -> dict[str, Any]:
    """Choice `i * n + j` is sequence j of prompt i."""
    choices = [
        _completion_choice(body, prompt_index, job.end, chunks)
        for prompt_index, job in enumerate(jobs)
        for chunks in _sequences(job, body.n)
    ]
    return {
        **completion_head(body, jobs[0].id, created),
        "choices": [{"index": i, **choice} for i, choice in enumerate(choices)],
        "usage": usage_json(total_usage(job.end for job in jobs)),
    }


def _completion_choice(
    body: CompletionRequest, prompt_index: int, end: Terminal, chunks: Sequence[Chunk]
) -> dict[str, Any]:
    prompt = echoed(body, prompt_index, end)
    logprobs = CompletionLogprobs(body.stop_strings)
    if body.echo and end.prompt_logprobs is not None:
        logprobs.add_prompt(end.prompt_logprobs, prompt)
    else:
        logprobs.skip(len(prompt))
    for chunk in chunks:
        logprobs.add(chunk)
    return {
        "text": prompt + _text(chunks),
        "logprobs": None if body.logprobs is None else logprobs.take(),
        "finish_reason": _finish_reason(chunks) or "length",  # max_tokens 0 generates nothing
    }


def _sequences(job: CompletedJob, n: int) -> list[list[Chunk]]:
    sequences: list[list[Chunk]] = [[] for _ in range(n)]
    for chunk in job.chunks:
        sequences[chunk.index].append(chunk)
    return sequences


def _text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def _finish_reason(chunks: Sequence[Chunk]) -> str | None:
    return next((chunk.finish_reason for chunk in reversed(chunks) if chunk.finish_reason is not None), None)
