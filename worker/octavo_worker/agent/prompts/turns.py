"""Messages and tools in the form that chat templates walk over: that of transformers' documentation."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from octavo.dialects.parsing import shortened_call_id
from octavo.terms.conversation import Message
from octavo.terms.tools import Tool, as_object


@dataclass(frozen=True)
class TurnForm:
    """Form of turns that a template takes.

    The roles in `parts` have content that is a list of parts. `null` is the content of an assistant that only calls
    tools. `arguments_as_text`: of calls, instead of objects. `short_ids`: of nine letters or digits.
    """

    parts: Set[str] = frozenset()
    null: str | None = ""
    arguments_as_text: bool = False
    short_ids: bool = False

    def with_parts(self, role: str) -> TurnForm:
        return replace(self, parts=self.parts | {role})

    def turns(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages. A tool's answer has the name of the tool, which only some clients send."""
        called = {call.id: call.name for message in messages for call in message.tool_calls}
        return [self._turn(message, called) for message in messages]

    def _turn(self, message: Message, called: dict[str, str]) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if name := message.name or called.get(message.tool_call_id or ""):
            turn["name"] = name
        if message.tool_call_id is not None:
            turn["tool_call_id"] = self._id(message.tool_call_id)
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": self._id(call.id),
                    "type": "function",
                    "function": {"name": call.name, "arguments": self._arguments(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.reasoning_content:
            turn["reasoning_content"] = message.reasoning_content
            if not (message.content and message.tool_calls):  # gpt-oss's word for it, which it takes with one of them
                turn["thinking"] = message.reasoning_content
        return turn

    def _content(self, message: Message) -> Any:
        if not message.text and message.tool_calls:
            return [] if message.role in self.parts else self.null
        return [{"type": "text", "text": message.text}] if message.role in self.parts else message.text

    def _arguments(self, text: str) -> Any:
        """A model's own mistakes stay text: a template that cannot print them says so."""
        found = {} if not text.strip() else as_object(text)
        return text if self.arguments_as_text or found is None else found

    def _id(self, call_id: str) -> str:
        return shortened_call_id(call_id) if self.short_ids else call_id


def described(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """The tools as templates expect them; None for none, as templates ask for that."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.schema_of_parameters,
            },
        }
        for tool in tools
    ] or None
