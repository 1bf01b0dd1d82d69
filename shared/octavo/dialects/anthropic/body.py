"""Bodies of the Messages API, and the chat completions that ask for the same."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from octavo.dialects.anthropic.content import MessageParam, Text, text_of
from octavo.dialects.openai.fields import Body, JsonObject, Word
from octavo.dialects.openai.requests import ChatCompletionRequest
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

    def fields(self) -> dict[str, Any]:
        """As chat completions have it."""
        thinks = self.type != "disabled"
        return {
            "chat_template_kwargs": {"enable_thinking": thinks, "thinking": thinks},
            "thinking_token_budget": self.budget_tokens if thinks else None,
        }


class Metadata(Body):
    user_id: Word | None = None


class PromptBody(Body):
    """Parts of a prompt."""

    model: ModelName
    messages: Annotated[tuple[MessageParam, ...], Field(min_length=1, fail_fast=True)]
    system: Text | None = None
    tools: Annotated[tuple[Tool, ...], Field(max_length=MAX_TOOLS, fail_fast=True)] = ()
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None

    def completion(self) -> ChatCompletionRequest:
        """Raises ValidationError."""
        return ChatCompletionRequest.model_validate(self._fields())

    def _fields(self) -> dict[str, Any]:
        system = [] if self.system is None else [{"role": "system", "content": text_of(self.system)}]
        turns = [turn for message in self.messages for turn in message.turns()]
        if len(turns) > 1 and turns[-1] == {"role": "assistant", "content": ""}:  # as good as none
            del turns[-1]
        fields: dict[str, Any] = {"model": self.model, "messages": [*system, *turns]}
        if turns[-1]["role"] == "assistant" and "tool_calls" not in turns[-1]:
            fields["continue_final_message"] = True
        if self.thinking is not None:
            fields |= self.thinking.fields()
        if self.tools:
            fields["tools"] = [tool.function() for tool in self.tools]
        if self.tools and (choice := self.tool_choice) is not None:
            named = {"type": "function", "function": {"name": choice.name}}
            fields["tool_choice"] = _CHOICES.get(choice.type, named)
            fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        return fields


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
