"""Input items: as clients send them, and as they are stored and listed."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from octavo.dialects.openai.fields import Body, Word
from octavo.terms.conversation import refuse_medium
from octavo.terms.errors import InvalidRequest
from octavo.terms.tools import ToolName

Item = dict[str, Any]
"""An item as it is stored and shown."""

_NEEDS = {
    "message": ("role", "content"),
    "item_reference": ("id",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
}
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


class ContentPart(Body):
    """Text in one of its forms. `annotations` and `logprobs` come back from clients that send an answer again."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None
    annotations: tuple[Any, ...] | None = None
    logprobs: tuple[Any, ...] | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, kind: Any) -> Any:
        return refuse_medium(kind)

    @model_validator(mode="after")
    def _has_its_text(self) -> Self:
        name = "refusal" if self.type == "refusal" else "text"
        if getattr(self, name) is None:
            raise ValueError(f"a part of type {self.type} needs {name}")
        return self

    @property
    def words(self) -> str:
        return (self.refusal if self.type == "refusal" else self.text) or ""


Content = str | Annotated[tuple[ContentPart, ...], Field(fail_fast=True)]


class InputItem(Body):
    """A message, a call and what it returned, a thought, or a reference to an item of an earlier response. Thoughts
    that others have encrypted cannot be read, and are left out."""

    type: Literal[
        "message",
        "item_reference",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
    ] = "message"
    id: Word | None = None
    status: Word | None = None
    phase: Word | None = None
    role: Literal["system", "user", "assistant", "developer"] | None = None
    content: Content | None = None
    call_id: Word | None = None
    name: ToolName | None = None
    arguments: str | None = None
    input: str | None = None
    output: Content | None = None
    summary: Annotated[tuple[ContentPart, ...], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if missing := [name for name in _NEEDS[self.type] if getattr(self, name) is None]:
            raise ValueError(f"an item of type {self.type} needs {' and '.join(missing)}")
        if self.type == "item_reference" and not self.id:
            raise ValueError("id is empty: name the item")
        return self

    def item(self) -> Item:
        """As it is stored."""
        fields: dict[str, Any]
        match self.type:
            case "function_call":
                fields = {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
            case "custom_tool_call":
                fields = {"call_id": self.call_id, "name": self.name, "input": self.input}
            case "function_call_output" | "custom_tool_call_output":
                fields = {"call_id": self.call_id, "output": _text(self.output)}
            case "reasoning":
                thought = {"type": "reasoning_text", "text": _text(self.content)}
                fields = {"summary": [_summary(part) for part in self.summary or ()], "content": [thought]}
            case _:
                return message_item(self.role or "user", _text(self.content), self.id)
        item_id = self.id or _new_id(self.type)
        return {"type": self.type, "id": item_id, "status": "completed", **fields}


def message_item(role: str, text: str, item_id: str | None = None) -> Item:
    """A message that is over."""
    part = {"type": "input_text", "text": text} if role != "assistant" else output_text(text)
    item_id = item_id or _new_id("message")
    return {"type": "message", "id": item_id, "status": "completed", "role": role, "content": [part]}


def output_text(text: str, logprobs: Sequence[Any] = ()) -> dict[str, Any]:
    """A part of an answer."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def stored(given: str | Iterable[InputItem], find: Callable[[str], Item]) -> list[Item]:
    """The items of an input. `find` gives those that are referred to."""
    if isinstance(given, str):
        return [message_item("user", given)]
    return [find(item.id or "") if item.type == "item_reference" else item.item() for item in given]


def check_outputs(items: Iterable[Item]) -> None:
    """Raises InvalidRequest for an output of no call before it, and for a second one of a call."""
    known: set[str] = set()
    unanswered: Counter[str] = Counter()
    for item in items:
        call_id = item.get("call_id", "")
        if item["type"] in _CALLS:
            known.add(call_id)
            unanswered[call_id] += 1
        elif item["type"] in _OUTPUTS:
            if not unanswered[call_id]:
                found = "two outputs are given for the call" if call_id in known else "no call before it is"
                message = f"{found} {call_id[:60]!r}: give each call one output, behind it"
                raise InvalidRequest(message, code="invalid_value", param="input")
            unanswered[call_id] -= 1


def _text(content: Content | None) -> str:
    return content if isinstance(content, str) else "".join(part.words for part in content or ())


def _summary(part: ContentPart) -> dict[str, str]:
    return {"type": "summary_text", "text": part.words}


def _new_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{secrets.token_hex(12)}"
