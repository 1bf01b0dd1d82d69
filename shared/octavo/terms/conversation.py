"""Turns of a conversation, and what else a model's chat template is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    StringConstraints,
    field_validator,
    model_validator,
)

from octavo.terms.fields import Requested, at_most
from octavo.terms.tools import ToolCall

Role = Literal["system", "user", "assistant", "tool", "developer"]
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now")
SWITCHES = ("enable_thinking", "thinking", "reasoning_effort")
"""Variables by which chat templates let a request choose how a model thinks."""
_MEDIA = ("image", "audio", "video", "file", "document")
_DEEPEST = 4
_MOST = 32
_MOST_VALUES = 65_536


class Message(Requested):
    """One turn of a conversation, rendered by the model's chat template on the worker.

    `content` may be a list of text parts, which are joined. Only an assistant that called tools may have said nothing.
    `tool_call_id` says which call a tool answers.
    """

    role: Role
    content: str | None = None
    name: str | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], Field(fail_fast=True)] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _joined(cls, content: Any) -> Any:
        return joined(content) if isinstance(content, list | tuple) else content

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"a message of the role {self.role} calls no tools: only an assistant's does")
        if self.content is None and not self.tool_calls:
            raise ValueError("a message needs content, unless it is an assistant's with tool_calls")
        return self

    @property
    def text(self) -> str:
        """The text of a message, empty for none."""
        return self.content or ""

    @property
    def texts(self) -> Iterator[str]:
        """All that may go into the prompt."""
        yield from (self.text, self.name or "", self.tool_call_id or "", self.reasoning_content or "")
        for call in self.tool_calls:
            yield from (call.id, call.name, call.arguments)


def refuse_media(content: Any) -> Any:
    """Content as it is. Raises ValueError for a list with an image, sound, a video or a file, naming the type of that
    part."""
    for part in content if isinstance(content, list | tuple) else ():
        refuse_medium(part.get("type") if isinstance(part, Mapping) else None)
    return content


def refuse_medium(kind: Any) -> Any:
    """The type of a part of a message as it is. Raises ValueError for that of an image, sound, a video or a file."""
    if isinstance(kind, str) and any(word in kind for word in _MEDIA):
        raise ValueError(f"a part of type {kind[:40]!r} is not read here: models read text alone; send text")
    return kind


def joined(parts: list[Any] | tuple[Any, ...]) -> str:
    """The text of a list of text parts. Raises ValueError for parts of another kind."""
    refuse_media(parts)
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("content is text or a list of text parts: {'type': 'text', 'text': '...'}")
    return "".join(text for text in texts if text is not None)


def check_final(messages: Sequence[Message]) -> None:
    """Raises ValueError unless the last of these messages can be continued."""
    if not messages or messages[-1].role != "assistant":
        raise ValueError("continue_final_message needs messages of which the last is an assistant's")
    if messages[-1].tool_calls:
        raise ValueError("continue_final_message and tool_calls of the last message do not go together: answer them")
    if messages[-1].reasoning_content and not messages[-1].text:
        raise ValueError("continue_final_message continues content, and the last message has none beside its thoughts")


def _checked(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if reserved := next((name for name in arguments if name in _RESERVED), None):
        raise ValueError(f"{reserved} is given to every template: it cannot be an argument")
    level: list[Any] = [arguments]
    values = 0
    for _ in range(_DEEPEST):
        level = [item for value in level for item in _members(value)]
        values += len(level)
    if values > _MOST_VALUES:
        raise ValueError(f"arguments of a template have {_MOST_VALUES} values in all at most")
    if level:
        raise ValueError(f"arguments of a template are nested {_DEEPEST - 1} levels deep at most")
    return arguments


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


TemplateArguments = Annotated[
    dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], JsonValue],
    Field(max_length=_MOST),
    BeforeValidator(at_most(_MOST)),
    AfterValidator(_checked),
]
"""Variables for the chat template, such as `enable_thinking`."""
