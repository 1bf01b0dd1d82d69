"""Fields of OpenAI's API that need no code: those that change nothing here, and those that octavo cannot do yet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from octavo.dialects.elsewhere import ELSEWHERE
from octavo.dialects.field_table import Refusal
from octavo.terms.conversation import TemplateArguments
from octavo.terms.fields import few_members

_NOT_NULL = (
    "n",
    "stream",
    "include_usage",
    "continuous_usage_stats",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "add_special_tokens",
    "priority",
    "logprobs",
    "max_tokens",
    "echo",
    "tools",
    "stop_sequences",
    "disable_parallel_tool_use",
    "is_error",
)


def _null_for_empty(value: Any) -> Any:
    return None if value in ([], {}) else value


Empty = Annotated[None, BeforeValidator(_null_for_empty)]
"""Null, or a list or object with nothing in it."""

Word = Annotated[str, StringConstraints(max_length=512)]


def _told(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("it holds a number that JSON lacks: NaN, an infinity, or one beyond 1.8e308") from None
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_told)]
"""An object that is passed on as JSON. Parsers of bodies take numbers that JSON lacks."""

Arguments = Annotated[TemplateArguments, AfterValidator(_told)]
"""Variables for the chat template."""


class Body(BaseModel):
    """An object of a request. A field that it does not have may be null only: ignoring a parameter silently would give
    a wrong answer."""

    model_config = ConfigDict(extra="allow", frozen=True)

    __pydantic_extra__: dict[str, None]

    @model_validator(mode="before")
    @classmethod
    def _has_few_members(cls, value: Any) -> Any:
        return few_members(value)

    @field_validator(*_NOT_NULL, mode="before", check_fields=False)
    @classmethod
    def _default_for_null(cls, value: Any, info: ValidationInfo) -> Any:
        """OpenAI's API takes null for whatever may be left out."""
        return cls.model_fields[info.field_name or ""].default if value is None else value


def _nothing_for_minus_one(value: Any) -> Any:
    return None if value == -1 and not isinstance(value, bool) else value


NO_LIMIT = BeforeValidator(_nothing_for_minus_one)
"""A limit of -1 is none, as in llama.cpp and LM Studio."""


class WithoutEffect(Body):
    """Fields of a request that are accepted because these values change nothing, and hints that are known."""

    user: Word | None = None
    safety_identifier: Word | None = None
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None
    service_tier: Word | None = None
    verbosity: Word | None = None
    store: bool | None = None
    function_call: Literal["none"] | None = None
    functions: Empty = None
    modalities: Annotated[tuple[Literal["text"]] | None, BeforeValidator(_null_for_empty)] = None
    guided_decoding_backend: Word | None = None


class CompletionWithoutEffect(Body):
    """Likewise, of a completion: a chat has more use for them."""

    reasoning_effort: Word | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tools: Empty = None
    chat_template_kwargs: Empty = None


class ChatWithoutEffect(Body):
    """Likewise, of a chat: a completion, or another server, has more use for them."""

    echo: Literal[False] | None = None


class Cacheable(Body):
    """A part of a prompt that other services are told to cache. Every prefix is cached here."""

    cache_control: dict[str, Any] | None = None


class MessageWithoutEffect(Cacheable):
    """Fields of a message that come back from clients that send an answer again."""

    id: Any = None
    refusal: Empty = None
    annotations: Any = None
    citations: Any = None
    provider_specific_fields: Any = None
    reasoning_details: Any = None


HINTS = frozenset(
    {
        *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "verbosity"),
        *("store", "prediction", "guided_decoding_backend"),
    }
)
CHAT_HINTS = HINTS | {
    f"messages.{name}" for name in MessageWithoutEffect.model_fields if name not in ("refusal", "cache_control")
}
COMPLETION_HINTS = HINTS | {"reasoning_effort", "parallel_tool_calls"}
"""Known hints by their paths; every unknown field is another."""

_SCHEMA = Refusal("send it as json_schema: {name, schema}")
REFUSED = {
    "functions": Refusal("send them as tools, of which it is the old form"),
    "function_call": Refusal("send tools and tool_choice, of which it is the old form", ("none",)),
    "modalities": Refusal("answers are text: leave it out or send ['text']"),
    "prompt_logprobs": Refusal("ask a completion for echo and logprobs, or submit to /v1/jobs"),
    "suffix": Refusal("text is not inserted before a suffix here: leave it out"),
    "guided_whitespace_pattern": Refusal("JSON is written without whitespace here: leave it out"),
    "structural_tag": Refusal("write it as a grammar: structured_outputs with grammar"),
    "structured_outputs.whitespace_pattern": Refusal("JSON is written without whitespace here: leave it out"),
    "structured_outputs.structural_tag": Refusal("write it as a grammar: structured_outputs with grammar"),
    **dict.fromkeys(("response_format.schema", "response_format.value", "response_format.strict"), _SCHEMA),
    "response_format.grammar": Refusal("send structured_outputs with grammar (Lark)"),
    "response_format.pattern": Refusal("send structured_outputs with regex"),
}
CHAT_REFUSED = REFUSED | {
    "prompt": Refusal("send messages, or a completion to /v1/completions"),
    "messages.audio": Refusal("prompts are text: leave it out"),
    "messages.images": Refusal("prompts are text: leave it out"),
    "messages.function_call": Refusal("send tool_calls, of which it is the old form"),
    **dict.fromkeys(("messages.prefix", "messages.partial"), Refusal("send continue_final_message")),
}
COMPLETION_REFUSED = REFUSED | {
    "messages": Refusal("send a prompt, or a chat to /v1/chat/completions"),
    "max_completion_tokens": Refusal("the limit of a completion is called max_tokens", (-1,)),
    "top_logprobs": Refusal("the number of alternatives is called logprobs", (0,)),
    "thinking_token_budget": Refusal("thoughts are a chat's: send messages"),
    "include_reasoning": Refusal("thoughts are a chat's: send messages", (True,)),
}
"""Fields that would change an answer, by their paths."""


def advice_of(path: Sequence[str]) -> str | None:
    """Advice for a field that a body refuses by itself."""
    names = ".".join(part for part in path if not part.isdecimal())
    refusal = CHAT_REFUSED.get(names) or COMPLETION_REFUSED.get(names) or (ELSEWHERE.get(path[-1]) if path else None)
    return refusal.advice if refusal is not None else None


OF_VALUES = {name: REFUSED[name].advice for name in ("functions", "function_call", "modalities")} | {
    "refusal": "send it as content",
    "echo": "a chat does not repeat its prompt: leave it out",
}
"""Advice by a known field, for values that it cannot have."""
