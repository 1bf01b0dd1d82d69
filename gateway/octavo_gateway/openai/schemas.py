"""Bodies of OpenAI-style requests, with the sampling fields that vLLM added.

Fields that are absent here are refused by name, unless they are null: a parameter that is silently ignored gives a
wrong answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticUseDefault

from octavo.models import (
    MAX_LOGIT_BIAS,
    MAX_SEQUENCES,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
    JobRequest,
    Message,
    ModelName,
    Priority,
    SamplingParams,
    StopString,
    TokenId,
    TokenIds,
    Usage,
)

MAX_PROMPTS = 256

T = TypeVar("T")


def _default_for_null(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


# OpenAI's API takes null for whatever may be left out.
Nullable = Annotated[T, BeforeValidator(_default_for_null)]

Prompt = Annotated[TokenIds, Field(min_length=1)]
Text = Annotated[str, StringConstraints(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    __pydantic_extra__: dict[str, None]


class StreamOptions(_Body):
    """`continuous_usage_stats` adds usage to every chunk; a text prompt's tokens are known with the last one only."""

    include_usage: Nullable[bool] = False
    continuous_usage_stats: Nullable[bool] = False


class TextFormat(_Body):
    """The only response format there is so far."""

    type: Literal["text"]


class GenerationBody(_Body):
    """What chat and completions share."""

    model: ModelName
    n: Nullable[int] = Field(1, ge=1, le=MAX_SEQUENCES)
    stream: Nullable[bool] = False
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
    user: Annotated[str, StringConstraints(max_length=512)] | None = None
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
    beam_width: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    length_penalty: float | None = Field(None, ge=-10.0, le=10.0)
    early_stopping: bool | Literal["never"] | None = None
    ignore_eos: Nullable[bool] = False
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_STRINGS)] | None = None
    include_stop_str_in_output: Nullable[bool] = False
    skip_special_tokens: Nullable[bool] = True
    add_special_tokens: Nullable[bool] = True
    priority: Nullable[Priority] = "normal"

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    def sampling(self, *, max_tokens: int | None, **extra: Any) -> SamplingParams:
        """The sampling parameters, with a limit or none; `extra` adds those that the two endpoints spell differently.

        Raises ValidationError for combinations that no single field shows.
        """
        given = {
            "max_tokens": max_tokens,
            **{name: getattr(self, name) for name in _SAME_NAME if getattr(self, name) is not None},
            **{name: value for name, value in extra.items() if value is not None},
        }
        if given.get("top_k") == -1:  # vLLM's other way to say off
            given["top_k"] = 0
        if self.seed is not None:
            given["seed"] = self.seed % (1 << 63)
        return SamplingParams.model_validate(given)

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


_SAME_NAME = sorted(set(SamplingParams.model_fields) & set(GenerationBody.model_fields) - {"seed"})


class TextPart(_Body):
    """Text content in list form."""

    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    """One turn. Content is text, or a list of text parts that are joined."""

    role: Literal["system", "user", "assistant", "tool", "developer"]
    content: str | Annotated[tuple[TextPart, ...], Field(fail_fast=True)]

    def message(self) -> Message:
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return Message(role=self.role, content=text)


class ChatCompletionRequest(GenerationBody):
    """`POST /v1/chat/completions`. Without a limit the answer ends where the model ends it or the context is full."""

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1, fail_fast=True)]
    max_tokens: int | None = Field(None, ge=1, le=1 << 24)
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 24)
    logprobs: Nullable[bool] = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    response_format: TextFormat | None = None

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def jobs(self) -> list[JobRequest]:
        """The one job that answers this request. Raises ValidationError."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return [
            JobRequest(
                model=self.model,
                messages=tuple(message.message() for message in self.messages),
                sampling=self.sampling(max_tokens=limit, logprobs=logprobs),
                priority=self.priority,
                add_special_tokens=self.add_special_tokens,
                metadata=self.metadata or {},
            )
        ]


class CompletionRequest(GenerationBody):
    """`POST /v1/completions`. A prompt is text or token ids, or a list of either."""

    prompt: (
        Text
        | Prompt
        | Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[tuple[Prompt, ...], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    max_tokens: Nullable[int] = Field(16, ge=0, le=1 << 24)
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: Nullable[bool] = False
    best_of: int | None = Field(None, ge=1, le=MAX_SEQUENCES)

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
        sampling = self.sampling(
            max_tokens=self.max_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=(self.logprobs or 0) if wants_prompt else None,
            best_of=self.best_of,
        )
        return [
            JobRequest(
                model=self.model,
                prompt=prompt,
                sampling=sampling,
                priority=self.priority,
                add_special_tokens=self.add_special_tokens,
                metadata=self.metadata or {},
            )
            for prompt in self.prompts
        ]


def usage_json(usage: Usage) -> dict[str, Any]:
    """Usage in OpenAI's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
