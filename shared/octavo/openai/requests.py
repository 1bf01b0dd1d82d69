"""Bodies of OpenAI-style requests, with the sampling fields that vLLM added, and the jobs that they ask for.

`octavo.openai.fields` lists what is accepted without effect, and what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from octavo.models import (
    MAX_LOGIT_BIAS,
    MAX_SEQUENCES,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    JobRequest,
    ModelName,
    Priority,
    SamplingParams,
    StopString,
    TokenId,
    TokenIds,
)
from octavo.openai.chat_messages import ChatMessage
from octavo.openai.fields import Body, CompletionWithoutEffect, WithoutEffect
from octavo.openai.structured import StructuredFields
from octavo.openai.tools import ChatFields

MAX_PROMPTS = 256
COMPLETION_TOKENS = 16
"""The limit of a completion that names none, as in OpenAI's API."""

Prompt = Annotated[TokenIds, Field(min_length=1)]
Text = Annotated[str, StringConstraints(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86400)]


class StreamOptions(Body):
    """`continuous_usage_stats` adds usage to every chunk; a text prompt's tokens are known with the last one only."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(WithoutEffect, StructuredFields):
    """What chat and completions share."""

    model: ModelName
    n: int = Field(1, ge=1, le=MAX_SEQUENCES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    presence_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    frequency_penalty: float | None = Field(None, ge=-2.0, le=2.0)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = Field(
        None, max_length=MAX_LOGIT_BIAS
    )
    stop: StopString | Annotated[tuple[StopString, ...], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = (
        None
    )
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    metadata: (
        Annotated[
            dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None

    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, gt=0.0, le=10.0)
    min_tokens: int | None = Field(None, ge=0, le=1 << 24)
    best_of: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    beam_width: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    length_penalty: float | None = Field(None, ge=-10.0, le=10.0)
    early_stopping: bool | Literal["never"] | None = None
    ignore_eos: bool = False
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_STRINGS)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    add_special_tokens: bool = True
    priority: Priority = "normal"
    timeout_s: Seconds | None = None
    queue_timeout_s: Seconds | None = None

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    def _jobs(
        self, prompts: Sequence[dict[str, Any]], *, max_tokens: int | None, **extra: int | None
    ) -> list[JobRequest]:
        """One job a prompt; `extra` are the sampling parameters that the two endpoints spell differently.

        Raises ValidationError for combinations that no single field shows.
        """
        given = {name: getattr(self, name) for name in _SAME_NAME} | extra
        given = {name: value for name, value in given.items() if value is not None}
        if self.top_k == -1:  # vLLM's other way to say off
            given["top_k"] = 0
        if self.seed is not None:
            given["seed"] = self.seed % (1 << 63)
        sampling = SamplingParams.model_validate({**given, "max_tokens": max_tokens})
        return [
            JobRequest(
                model=self.model,
                sampling=sampling,
                grammar=self.grammar,
                priority=self.priority,
                add_special_tokens=self.add_special_tokens,
                timeout_s=self.timeout_s,
                queue_timeout_s=self.queue_timeout_s,
                metadata=self.metadata or {},
                **prompt,
            )
            for prompt in prompts
        ]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


_SAME_NAME = sorted(set(SamplingParams.model_fields) & set(GenerationBody.model_fields) - {"seed"})


class ChatCompletionRequest(ChatFields, GenerationBody):
    """`POST /v1/chat/completions`. Without a limit the answer ends where the model ends it or the context is full."""

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1, le=1 << 24)
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 24)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def jobs(self) -> list[JobRequest]:
        """The one job that answers this request. Raises ValidationError."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        messages = tuple(message.message() for message in self.messages)
        return self._jobs(
            [{"messages": messages, **self.chat_fields()}],
            max_tokens=limit,
            logprobs=logprobs,
            thinking_token_budget=self.thinking_token_budget,
        )


class CompletionRequest(CompletionWithoutEffect, GenerationBody):
    """`POST /v1/completions`. A prompt is text or token ids, or a list of either."""

    prompt: (
        Text
        | Prompt
        | Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[tuple[Prompt, ...], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    max_tokens: int = Field(COMPLETION_TOKENS, ge=0, le=1 << 24)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False

    @model_validator(mode="after")
    def _supported_combinations(self) -> Self:
        if self.stream and self.max_tokens == 0:
            raise ValueError("max_tokens 0 leaves nothing to stream: use stream: false")
        if self.stream and self.echo and (self.logprobs is not None or not isinstance(self.prompts[0], str)):
            raise ValueError(
                "echo of log-probabilities or of token ids is not available in a stream: use stream: false"
            )
        return self

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """One or more prompts, whichever form was sent."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return (self.prompt,)
        return self.prompt

    def jobs(self) -> list[JobRequest]:
        """One job a prompt. Raises ValidationError."""
        # The prompt's tokens come back with its log-probabilities; their text is what echo of token ids shows.
        wants_prompt = self.echo and (self.logprobs is not None or not isinstance(self.prompts[0], str))
        return self._jobs(
            [{"prompt": prompt} for prompt in self.prompts],
            max_tokens=self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=(self.logprobs or 0) if wants_prompt else None,
        )


ENDPOINTS: dict[str, type[ChatCompletionRequest | CompletionRequest]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
}
"""What each path takes."""
