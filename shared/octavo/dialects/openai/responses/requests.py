"""Bodies of `POST /v1/responses`, and the jobs that they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

from octavo.dialects.elsewhere import ELSEWHERE
from octavo.dialects.field_table import Dropping, FieldTable
from octavo.dialects.openai.fields import NO_LIMIT, Body, Word
from octavo.dialects.openai.responses.conversation import messages
from octavo.dialects.openai.responses.fields import HINTS, REFUSED
from octavo.dialects.openai.responses.items import InputItem, Item
from octavo.dialects.openai.responses.record import Record
from octavo.dialects.openai.responses.text import TextOptions
from octavo.dialects.openai.responses.tools import Choice, Tools, chosen, offered
from octavo.dialects.openai.sampled import SampledBody
from octavo.dialects.openai.thinking import EffortFields
from octavo.terms.fields import MAX_TOP_LOGPROBS
from octavo.terms.models import JobRequest
from octavo.terms.sampling import SamplingDefaults
from octavo.terms.tools import check_tools

Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


def _not_included(name: Any) -> str | None:
    """The name of an extra that belongs to tools which a server would run."""
    return name if isinstance(name, str) and name not in get_args(Included) else None


class Reasoning(Body):
    """`effort` is told to the chat template, `none` as no thinking at all. No summaries are made."""

    effort: Word | None = None
    summary: Word | None = None
    generate_summary: Word | None = None


class StreamOptions(Body):
    """Events are never padded, whatever is asked."""

    include_obfuscation: bool | None = None


class ResponseRequest(EffortFields, SampledBody):
    """`POST /v1/responses`. Without `max_output_tokens` the answer ends where the model ends it or the context is
    full."""

    input: (
        Annotated[str, StringConstraints(min_length=1)]
        | Annotated[tuple[InputItem, ...], Field(min_length=1, fail_fast=True)]
    )
    instructions: str | None = None
    previous_response_id: Word | None = None
    max_output_tokens: Annotated[int | None, NO_LIMIT] = Field(None, ge=1, le=1 << 24)
    stream: bool = False
    stream_options: StreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    include: Annotated[tuple[Included, ...], Dropping(_not_included), Field(fail_fast=True)] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    text: TextOptions | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=0)
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Word | None = None
    user: Word | None = None
    safety_identifier: Word | None = None
    prompt_cache_key: Word | None = None
    prompt_cache_retention: Word | None = None

    @field_validator("tool_choice")
    @classmethod
    def _chosen_among_the_tools(cls, choice: Any, info: ValidationInfo) -> Any:
        if "tools" in info.data:
            check_tools(offered(info.data["tools"] or (), choice), chosen(choice))
        return choice

    @field_validator("tools")
    @classmethod
    def _tools_have_names_of_their_own(cls, tools: Any) -> Any:
        check_tools(offered(tools or (), None), chosen(None))
        return tools

    @model_validator(mode="after")
    def _background_is_stored(self) -> Self:
        if self.background and not self.is_stored:
            raise ValueError("background needs store: true, or its result could not be had")
        return self

    @property
    def is_stored(self) -> bool:
        return self.store is not False

    def record(self, items: Sequence[Item], created_at: int, defaults: SamplingDefaults | None = None) -> Record:
        """The record of the response. `items` are all that go in, those of earlier responses first. `defaults` are the
        model's, which it shows where the request says nothing."""
        fields = self._fields((defaults or SamplingDefaults()).all())
        return Record(created_at=created_at, fields=fields, items=list(items))

    def job(self, record: Record) -> JobRequest:
        """The job that answers. Raises ValidationError."""
        wants_logprobs = bool(self.top_logprobs) or "message.output_text.logprobs" in (self.include or ())
        sampling = self._sampling(
            max_tokens=self.max_output_tokens, logprobs=(self.top_logprobs or 0) if wants_logprobs else None
        )
        return self._job(
            sampling,
            messages=messages(self.instructions, record.items),
            tools=offered(self.tools or (), self.tool_choice),
            tool_choice=chosen(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls is not False,
            chat_template_kwargs=self.template_arguments(),
            parsed=True,
            grammar=self.text.format.grammar if self.text and self.text.format else None,
        )

    def _said_otherwise(self) -> list[tuple[str, bool | str | None]]:
        return [("reasoning.effort", self.reasoning.effort if self.reasoning else None)]

    def _fields(self, defaults: Mapping[str, float]) -> dict[str, Any]:
        sampling = self._sampling(max_tokens=self.max_output_tokens)
        effort = self.reasoning.effort if self.reasoning else None
        choice = self.tool_choice
        return {
            "model": self.model,
            "instructions": self.instructions,
            "previous_response_id": self.previous_response_id,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "background": bool(self.background),
            "store": self.is_stored,
            "temperature": defaults["temperature"] if self.temperature is None else self.temperature,
            "top_p": defaults["top_p"] if self.top_p is None else self.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": self.top_logprobs or 0,
            "text": (self.text or TextOptions()).shown(),
            "tools": [tool.shown() for tool in self.tools or ()],
            "tool_choice": choice.model_dump(mode="json") if isinstance(choice, Body) else choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "reasoning": {"effort": effort, "summary": None},
            "truncation": "disabled",
            "service_tier": "default",
            "metadata": self.metadata or {},
            "user": self.user,
            "safety_identifier": self.safety_identifier,
            "prompt_cache_key": self.prompt_cache_key,
        }


TABLE = FieldTable.of(ResponseRequest, HINTS, ELSEWHERE, REFUSED)
"""Classes of the fields."""
