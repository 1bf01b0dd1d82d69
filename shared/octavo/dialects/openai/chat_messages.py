"""Messages of a chat request, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from octavo.dialects.openai.fields import Body, Cacheable, MessageWithoutEffect, Word
from octavo.terms.conversation import Message, Role, refuse_media
from octavo.terms.tools import ToolCall, ToolName


class TextPart(Cacheable):
    """Text content in list form."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """A called function. `arguments` are the model's text; empty for none."""

    name: ToolName
    arguments: str = "{}"


class MessageToolCall(Body):
    """A call that the assistant made. `index` is what a stream called it: some clients send it back."""

    id: Word = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None

    @property
    def call(self) -> ToolCall:
        return ToolCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


class ChatMessage(MessageWithoutEffect):
    """One turn. Only an assistant may have said nothing, mostly because it called tools."""

    role: Role
    content: str | Annotated[tuple[TextPart, ...], Field(fail_fast=True)] | None = Field(None, validate_default=True)
    name: Word | None = None
    tool_calls: Annotated[tuple[MessageToolCall, ...], Field(fail_fast=True)] | None = None
    tool_call_id: Word | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _is_text(cls, content: Any) -> Any:
        return refuse_media(content)

    @field_validator("content")
    @classmethod
    def _only_an_assistant_says_nothing(cls, content: Any, info: ValidationInfo) -> Any:
        if content is None and info.data.get("role") != "assistant":
            raise ValueError("content is null or missing, which only an assistant's may be: send text")
        return content

    @model_validator(mode="after")
    def _calls_are_the_assistants(self) -> Self:
        if self.role != "assistant" and self.tool_calls:
            raise ValueError(f"a message of the role {self.role} has no tool_calls: only an assistant's has")
        return self

    def message(self) -> Message:
        """The turn as the job has it: with one string."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content or ())
        calls = tuple(call.call for call in self.tool_calls or ())
        return Message(
            role=self.role,
            content=text if text or not calls else None,
            name=self.name,
            tool_calls=calls,
            tool_call_id=self.tool_call_id if self.role == "tool" else None,
            reasoning_content=self.reasoning_content or self.reasoning,
        )
