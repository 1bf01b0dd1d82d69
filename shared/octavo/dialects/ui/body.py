"""The body that `useChat` sends: a chat of UI messages, and all that the application adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from octavo.dialects.openai.requests import ChatCompletionRequest
from octavo.terms.errors import InvalidRequest

ChatId = Annotated[str, StringConstraints(min_length=1, max_length=255)]

_TOOL = "tool-"
_SHOWN_ONLY = ("step-start", "reasoning", "source-url", "source-document")  # parts that a model does not read again
_DATA = "data-"


class UiPart(BaseModel):
    """One part of a message. What it holds beside its type depends on that."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    text: str = ""


class UiMessage(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Literal["system", "user", "assistant"]
    parts: Annotated[tuple[UiPart, ...], Field(fail_fast=True)]


class UiChatRequest(BaseModel):
    """A chat that wants an answer. Fields beside these are those of a chat completion, such as `model`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: ChatId
    messages: Annotated[tuple[UiMessage, ...], Field(min_length=1, fail_fast=True)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    messageId: str | None = None

    def completion(self) -> ChatCompletionRequest:
        """The same as a chat completion. Raises InvalidRequest, ValidationError."""
        messages = [turn for i, message in enumerate(self.messages) for turn in _turns(message, f"messages.{i}")]
        body = ChatCompletionRequest.model_validate({**(self.model_extra or {}), "messages": messages, "stream": True})
        if body.n != 1:
            raise InvalidRequest("n: a chat has one answer: leave it out", param="n", code="invalid_value")
        return body


def _turns(message: UiMessage, place: str) -> Iterator[dict[str, Any]]:
    """A message as chat completions have it: an assistant's calls of tools and their results are turns of their own."""
    text = ""
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for i, part in enumerate(message.parts):
        if part.type == "text":
            if results:  # text of a later step
                yield _turn(message.role, text, calls)
                yield from results
                text, calls, results = "", [], []
            text += part.text
        elif part.type.startswith(_TOOL) or part.type == "dynamic-tool":
            calls.append(_call(part))
            results += _results(part)
        elif part.type not in _SHOWN_ONLY and not part.type.startswith(_DATA):
            where = f"{place}.parts.{i}"
            message_text = (
                f"{where}: a part of type {part.type[:40]!r} is not read here: models read text alone; send text"
            )
            raise InvalidRequest(message_text, param=where, code="invalid_value")
    yield _turn(message.role, text, calls)
    yield from results


def _turn(role: str, text: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"role": role, "content": text or None, "tool_calls": calls} if calls else {"role": role, "content": text}


def _call(part: UiPart) -> dict[str, Any]:
    more = part.model_extra or {}
    name = more.get("toolName") or part.type.removeprefix(_TOOL)
    function = {"name": name, "arguments": json.dumps(more.get("input", {}), ensure_ascii=False)}
    return {"id": more.get("toolCallId"), "type": "function", "function": function}


def _results(part: UiPart) -> list[dict[str, Any]]:
    more = part.model_extra or {}
    if more.get("state") == "output-available":
        output = more.get("output")
        content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    elif more.get("state") == "output-error":
        content = str(more.get("errorText", ""))
    else:
        return []
    return [{"role": "tool", "tool_call_id": more.get("toolCallId"), "content": content}]
