"""Bodies of OpenAI-style requests, with the sampling fields that vLLM added, and the jobs that they ask for.

`octavo.dialects.openai.fields` lists hints, and what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from octavo.dialects.elsewhere import ELSEWHERE
from octavo.dialects.field_table import FieldTable
from octavo.dialects.openai.chat_messages import ChatMessage
from octavo.dialects.openai.fields import (
    CHAT_HINTS,
    CHAT_REFUSED,
    COMPLETION_HINTS,
    COMPLETION_REFUSED,
    NO_LIMIT,
    Body,
    ChatWithoutEffect,
    CompletionWithoutEffect,
    WithoutEffect,
)
from octavo.dialects.openai.sampled import SampledBody
from octavo.dialects.openai.structured import StructuredFields
from octavo.dialects.openai.tools import ChatFields
from octavo.terms.fields import MAX_SEQUENCES, MAX_TOP_LOGPROBS, TokenIds
from octavo.terms.models import JobRequest

MAX_PROMPTS = 256
COMPLETION_TOKENS = 16
"""The limit of a completion that names none, as in OpenAI's API."""

Prompt = Annotated[TokenIds, Field(min_length=1)]
Text = Annotated[str, StringConstraints(min_length=1)]


def _null_for_false(value: Any) -> Any:
    return None if value is False else value


class StreamOptions(Body):
    """`continuous_usage_stats` adds usage to every chunk; a text prompt's tokens are known with the last one only."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(WithoutEffect, StructuredFields, SampledBody):
    """Fields that chat and completions share."""

    n: int = Field(1, ge=1, le=MAX_SEQUENCES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    best_of: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    beam_width: int | None = Field(None, ge=1, le=MAX_SEQUENCES)
    length_penalty: float | None = Field(None, ge=-10.0, le=10.0)
    early_stopping: bool | Literal["never"] | None = None

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
        sampling = self._sampling(max_tokens=max_tokens, **extra)
        return [self._job(sampling, grammar=self.grammar, **prompt) for prompt in prompts]

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class ChatCompletionRequest(ChatWithoutEffect, ChatFields, GenerationBody):
    """`POST /v1/chat/completions`. Without a limit the answer ends where the model ends it or the context is full."""

    messages: Annotated[tuple[ChatMessage, ...], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int | None, NO_LIMIT] = Field(None, ge=1, le=1 << 24)
    max_completion_tokens: Annotated[int | None, NO_LIMIT] = Field(None, ge=1, le=1 << 24)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _goes_on_or_begins(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt cannot both be true: leave one out")
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise ValueError("add_generation_prompt: false needs continue_final_message: true")
        if self.continue_final_message and self.grammar_field is not None:
            raise ValueError(
                f"continue_final_message and {self.grammar_field} do not go together, since that is said of a whole "
                "answer: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    def jobs(self) -> list[JobRequest]:
        """The one job that answers this request. Raises ValidationError."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        messages = tuple(message.message() for message in self.messages)
        return self._jobs(
            [
                {
                    "messages": messages,
                    "continue_final_message": bool(self.continue_final_message),
                    **self.chat_fields(),
                }
            ],
            max_tokens=limit,
            logprobs=logprobs,
            thinking_token_budget=self.budget,
        )


class CompletionRequest(CompletionWithoutEffect, GenerationBody):
    """`POST /v1/completions`. A prompt is text or token ids, or a list of either."""

    prompt: (
        Text
        | Prompt
        | Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[tuple[Prompt, ...], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )
    max_tokens: Annotated[int | None, NO_LIMIT] = Field(COMPLETION_TOKENS, ge=0, le=1 << 24)
    logprobs: Annotated[int | None, BeforeValidator(_null_for_false)] = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
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
"""Body of each path."""

TABLES = {
    ChatCompletionRequest: FieldTable.of(ChatCompletionRequest, CHAT_HINTS, ELSEWHERE, CHAT_REFUSED),
    CompletionRequest: FieldTable.of(CompletionRequest, COMPLETION_HINTS, ELSEWHERE, COMPLETION_REFUSED),
}
"""Classes of the fields of each."""
