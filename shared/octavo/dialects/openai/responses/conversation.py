"""The items of a response as the messages of its job."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.dialects.openai.responses.items import Item
from octavo.dialects.openai.responses.text_argument import arguments_of
from octavo.terms.conversation import Message
from octavo.terms.tools import ToolCall


def messages(instructions: str | None, items: Iterable[Item]) -> tuple[Message, ...]:
    """A conversation as the chat template takes it. Instructions come first. What an assistant thought, said and called
    in one go is one message."""
    turns = _Turns()
    if instructions:
        turns.add(Message(role="system", content=instructions))
    for item in items:
        match item["type"]:
            case "reasoning":
                turns.think(_joined(item["content"]))
            case "function_call":
                turns.call(ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"]))
            case "custom_tool_call":
                turns.call(ToolCall(id=item["call_id"], name=item["name"], arguments=arguments_of(item["input"])))
            case "function_call_output" | "custom_tool_call_output":
                turns.returned(item["call_id"], item["output"])
            case "message" if item["role"] == "assistant":
                turns.say(_joined(item["content"]))
            case "message":
                turns.add(Message(role=item["role"], content=_joined(item["content"])))
    return turns.take()


class _Turns:
    """Messages, and the assistant's that is being put together."""

    def __init__(self) -> None:
        self._done: list[Message] = []
        self._names: dict[str, str] = {}  # of functions, by the id of their call
        self._thought = ""
        self._said: str | None = None
        self._calls: list[ToolCall] = []

    def think(self, text: str) -> None:
        if self._said is not None or self._calls:
            self._close()
        self._thought += text

    def say(self, text: str) -> None:
        if self._said is not None or self._calls:
            self._close()
        self._said = text

    def call(self, call: ToolCall) -> None:
        self._names[call.id] = call.name
        self._calls.append(call)

    def returned(self, call_id: str, output: str) -> None:
        name = self._names.get(call_id)
        self.add(Message(role="tool", content=output, name=name, tool_call_id=call_id))

    def add(self, message: Message) -> None:
        self._close()
        self._done.append(message)

    def take(self) -> tuple[Message, ...]:
        self._close()
        return tuple(self._done)

    def _close(self) -> None:
        """A thought that led to nothing is left out."""
        if self._said is not None or self._calls:
            self._done.append(
                Message(
                    role="assistant",
                    content=self._said,
                    tool_calls=tuple(self._calls),
                    reasoning_content=self._thought or None,
                )
            )
        self._thought, self._said, self._calls = "", None, []


def _joined(parts: Iterable[Item]) -> str:
    return "".join(part["text"] for part in parts)
