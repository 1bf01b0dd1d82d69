"""A model's answer in the shape of OpenAI's messages and deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo.dialects.parsing import CallDelta, ContentDelta, Delta, Parsed, ReasoningDelta


def message_json(parsed: Parsed, *, with_reasoning: bool = True) -> dict[str, Any]:
    """A whole message. Its content is null where it only calls tools."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if parsed.calls and not parsed.content else parsed.content,
        "refusal": None,
    }
    if parsed.reasoning and with_reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.calls
        ]
    return message


def delta_json(delta: Delta) -> dict[str, Any]:
    """A delta of a streamed message."""
    match delta:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case CallDelta(index, call_id, name, arguments) if name is not None:
            begun = {"name": name, "arguments": arguments}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": begun}]}
        case CallDelta(index, _, _, arguments):
            return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def calls_tools(deltas: Iterable[Delta]) -> bool:
    return any(isinstance(delta, CallDelta) for delta in deltas)


def finish_reason(reason: str | None, *, called: bool) -> str | None:
    """`tool_calls` for an answer that ended by itself and called tools."""
    return "tool_calls" if called and reason == "stop" else reason
