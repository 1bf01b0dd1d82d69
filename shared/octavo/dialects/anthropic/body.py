"""Bodies of the Messages API, and the chat completions that ask for the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from octavo.dialects.anthropic.content import MessageParam, Text, text_of
from octavo.dialects.anthropic.fields import HINTS, REFUSED
from octavo.dialects.elsewhere import ELSEWHERE
from octavo.dialects.field_table import Dropping, FieldTable
from octavo.dialects.openai.fields import Body, JsonObject, Word
from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.dialects.openai.thinking import EffortFields
from octavo.dialects.openai.tools import foreign_tool
from octavo.terms.fields import MAX_STOP_STRINGS, ModelName
from octavo.terms.tools import MAX_TOOLS

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Tool(Body):
    """A tool of the caller."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: JsonObject
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None

    def function(self) -> dict[str, Any]:
        """As chat completions have it."""
        named = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        function = {name: value for name, value in (*named.items(), ("strict", self.strict)) if value is not None}
        return {"type": "function", "function": function}


class ToolChoice(Body):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Body):
    """The model's thinking: on or off, if its chat template lets it choose, and most tokens of it."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, ge=0, le=1 << 24)
    display: Word | None = None

    @property
    def is_on(self) -> bool:
        return self.type != "disabled"


class Metadata(Body):
    user_id: Word | None = None


class OutputFormat(Body):
    """JSON that is valid by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class OutputConfig(Body):
    """The form of an answer, and the effort that goes into it."""

    effort: Word | None = None
    format: OutputFormat | None = None


class PromptBody(EffortFields):
    """Parts of a prompt."""

    model: ModelName
    messages: Annotated[tuple[MessageParam, ...], Field(min_length=1, fail_fast=True)]
    system: Text | None = None
    tools: Annotated[tuple[Tool, ...], Dropping(foreign_tool), Field(max_length=MAX_TOOLS, fail_fast=True)] = ()
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None

    @model_validator(mode="after")
    def _one_format(self) -> Self:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise ValueError("give one of output_config.format and output_format, which is its old name")
        return self

    @property
    def grammar_field(self) -> str | None:
        """The field that says what form the answer has."""
        if self._format is None:
            return None
        return "output_config.format" if self.output_format is None else "output_format"

    @property
    def _format(self) -> OutputFormat | None:
        return self.output_format or (self.output_config.format if self.output_config is not None else None)

    def completion(self) -> ChatCompletionRequest:
        """Raises ValidationError."""
        return ChatCompletionRequest.model_validate(self._fields())

    def _fields(self) -> dict[str, Any]:
        system = [{"role": "system", "content": text_of(self.system)}] if self.system else []
        turns = [turn for message in self.messages for turn in message.turns()]
        if len(turns) > 1 and turns[-1] == {"role": "assistant", "content": ""}:  # as good as none
            del turns[-1]
        fields: dict[str, Any] = {"model": self.model, "messages": [*system, *turns], **self._of_thinking()}
        if turns[-1]["role"] == "assistant" and "tool_calls" not in turns[-1]:
            fields["continue_final_message"] = True
        if (form := self._format) is not None:
            named = {"name": "answer", "schema": form.json_schema}
            fields["response_format"] = {"type": "json_schema", "json_schema": named}
        if self.tools:
            fields["tools"] = [tool.function() for tool in self.tools]
        if (choice := self.tool_choice) is not None and (self.tools or choice.type in ("any", "tool")):
            function = {"type": "function", "function": {"name": choice.name}}
            fields["tool_choice"] = _CHOICES.get(choice.type, function)
            fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return fields

    def _of_thinking(self) -> dict[str, Any]:
        budget = self.thinking.budget_tokens if self.thinking is not None and self.thinking.is_on else None
        return {
            "chat_template_kwargs": self.template_arguments(),
            "thinking_token_budget": budget if self.thinking_token_budget is None else self.thinking_token_budget,
        }

    def _said_otherwise(self) -> list[tuple[str, bool | str | None]]:
        return [
            ("thinking", self.thinking.is_on if self.thinking is not None else None),
            ("output_config.effort", self.output_config.effort if self.output_config is not None else None),
        ]


class MessagesRequest(PromptBody):
    """`POST /v1/messages`."""

    max_tokens: int = Field(ge=1, le=1 << 24)
    stop_sequences: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=256)], ...],
        Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
    ] = ()
    stream: bool = False
    temperature: float | None = Field(None, ge=0.0, le=1.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0)
    metadata: Metadata | None = None
    service_tier: Word | None = None

    @model_validator(mode="after")
    def _final_message_can_be_continued(self) -> Self:
        """A last message of the assistant's is the beginning of the answer."""
        final = self.messages[-1]
        if final.role == "assistant" and (problem := self._problem_with(final)):
            raise ValueError(f"messages: {problem}")
        return self

    def _problem_with(self, final: MessageParam) -> str | None:
        """The reason why a message of the assistant's cannot be continued."""
        if final.calls_tools:
            return "the final assistant message has tool_use: answer each with a tool_result of the user's"
        text = final.text
        if text != text.rstrip():
            return "final assistant content cannot end with trailing whitespace"
        if not text:
            return None
        if self.thinking is not None and self.thinking.type == "enabled" and not final.begins_with_thinking:
            return "a final assistant message and thinking do not go together, unless a thinking block comes first"
        if self.tools and self.tool_choice is not None and self.tool_choice.type in ("any", "tool"):
            return f"a final assistant message and tool_choice {self.tool_choice.type} do not go together"
        if any(tool.strict for tool in self.tools) and (self.tool_choice is None or self.tool_choice.type != "none"):
            return "a final assistant message and strict tools do not go together"
        return None

    def _fields(self) -> dict[str, Any]:
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        fields = {**super()._fields(), **given, "max_tokens": self.max_tokens, "stream": self.stream}
        if self.stop_sequences:  # they come with the last token: it is told which one ended the answer
            fields |= {"stop": list(self.stop_sequences), "include_stop_str_in_output": True}
        return fields


class CountRequest(PromptBody):
    """`POST /v1/messages/count_tokens`."""


TABLES = {body: FieldTable.of(body, HINTS, ELSEWHERE, REFUSED) for body in (MessagesRequest, CountRequest)}
"""Classes of the fields of each."""
