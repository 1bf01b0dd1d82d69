"""Fields of OpenAI's API that need no code: those that change nothing here, and those that octavo cannot do yet."""

from __future__ import annotations

import json
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


class WithoutEffect(Body):
    """Fields of a request that are accepted because these values change nothing."""

    user: Word | None = None
    safety_identifier: Word | None = None
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None
    service_tier: Word | None = None
    verbosity: Word | None = None
    store: Literal[False] | None = None
    function_call: Literal["none"] | None = None
    functions: Empty = None
    modalities: tuple[Literal["text"]] | None = None
    guided_decoding_backend: Word | None = None


class CompletionWithoutEffect(Body):
    """Likewise, of a completion: a chat has more use for them."""

    reasoning_effort: Word | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Literal["none"] | None = None
    tools: Empty = None
    chat_template_kwargs: Empty = None


class Cacheable(Body):
    """A part of a prompt that other services are told to cache. Every prefix is cached here."""

    cache_control: dict[str, Any] | None = None


class MessageWithoutEffect(Cacheable):
    """Fields of a message that are accepted because these values change nothing."""

    annotations: Empty = None


REFUSED = {
    "functions": "send them as tools, of which it is the old form",
    "function_call": "send tools and tool_choice, of which it is the old form",
    "whitespace_pattern": "JSON is written without whitespace here: leave it out",
    "guided_whitespace_pattern": "JSON is written without whitespace here: leave it out",
    "structural_tag": "write it as a grammar: structured_outputs with grammar",
    "store": "answers are not stored under this API: send false, or submit to /v1/jobs, which keeps results",
    "modalities": "answers are text: leave it out or send ['text']",
    "audio": "answers are text: leave it out",
    "prediction": "predicted outputs are not used here: leave it out",
    "web_search_options": "nothing is searched here: leave it out",
    "suffix": "text is not inserted before a suffix here: leave it out",
    "prompt_logprobs": "ask a completion for echo and logprobs, or submit to /v1/jobs",
    "max_completion_tokens": "the limit of a completion is called max_tokens",
}
"""Advice by the name of a field that is not supported, or not with every value."""
