"""One answer as the events of a streamed message, and as the message that they amount to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.anthropic.arguments import ArgumentPieces
from octavo.dialects.deltas import AnswerReader
from octavo.dialects.parsing import CallDelta, Delta, ReasoningDelta
from octavo.terms.messages import Chunk, Usage

Event = dict[str, Any]

_PIECES = {"text_delta": "text", "thinking_delta": "thinking"}  # by the kind of delta, the field that grows


class MessageEvents:
    """Turns the chunks of a job, from its first, into events. The same tokens give the same events, however they are
    grouped into chunks. The pieces of a call's input are a JSON object together, whatever the model wrote."""

    def __init__(self, job_id: str, model: str, parser: AnswerParser, stop: Sequence[str] = ()) -> None:
        self._job_id = job_id
        self._model = model
        self._reader = AnswerReader(parser, stop)
        self._events = self._start()
        self._open: str | None = None
        self._arguments: ArgumentPieces | None = None  # of the call that is open
        self._blocks = 0
        self._called = False

    def add(self, chunk: Chunk) -> list[Event]:
        """The events that tokens add."""
        self._reader.add(chunk, self._take)
        return self._taken()

    def end(self, usage: Usage) -> list[Event]:
        """The events behind the last token."""
        self._reader.end(self._take)
        self._close(cut=self._reader.finish_reason != "stop")
        counts = {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }
        ended = {"stop_reason": self._stop_reason(), "stop_sequence": self._reader.stopped_by}
        self._events += [{"type": "message_delta", "delta": ended, "usage": counts}, {"type": "message_stop"}]
        return self._taken()

    def _taken(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    def _start(self) -> list[Event]:
        # How long the prompt is turns out at the end.
        message: dict[str, Any] = {
            "id": f"msg_{self._job_id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def _stop_reason(self) -> str:
        if self._reader.finish_reason == "length":
            return "max_tokens"
        if self._called:
            return "tool_use"
        return "end_turn" if self._reader.stopped_by is None else "stop_sequence"

    def _take(self, delta: Delta) -> None:
        if isinstance(delta, CallDelta):
            if delta.name is not None:
                self._called = True
                block: dict[str, Any] = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                self._begin(f"tool_use {delta.index}", block)
                self._arguments = ArgumentPieces()
            if self._arguments is not None:
                self._input(self._arguments.add(delta.arguments))
        elif isinstance(delta, ReasoningDelta):
            self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._piece({"type": "thinking_delta", "thinking": delta.text})
        else:
            self._begin("text", {"type": "text", "text": ""})
            self._piece({"type": "text_delta", "text": delta.text})

    def _begin(self, kind: str, block: dict[str, Any]) -> None:
        if self._open != kind:
            self._close()
            self._open = kind
            self._events.append({"type": "content_block_start", "index": self._blocks, "content_block": block})

    def _piece(self, delta: dict[str, Any]) -> None:
        self._events.append({"type": "content_block_delta", "index": self._blocks, "delta": delta})

    def _input(self, text: str) -> None:
        if text:
            self._piece({"type": "input_json_delta", "partial_json": text})

    def _close(self, *, cut: bool = False) -> None:
        if self._arguments is not None:
            self._input(self._arguments.end(cut=cut))
            self._arguments = None
        if self._open is not None:
            self._open = None
            self._events.append({"type": "content_block_stop", "index": self._blocks})
            self._blocks += 1


def whole_message(events: Iterable[Event]) -> dict[str, Any]:
    """The message of all events of an answer."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = {**event["message"], "content": []}
            case "content_block_start":
                message["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                index, delta = event["index"], event["delta"]
                if delta["type"] == "input_json_delta":
                    inputs[index] = inputs.get(index, "") + delta["partial_json"]
                else:
                    message["content"][index][_PIECES[delta["type"]]] += delta[_PIECES[delta["type"]]]
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message
