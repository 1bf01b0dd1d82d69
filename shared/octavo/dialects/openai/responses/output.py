"""The output of a response: items that grow with the text of its job, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from octavo.dialects.answer_parser import AnswerParser
from octavo.dialects.openai.logprobs import ToldLogprobs, chat_logprobs
from octavo.dialects.openai.responses.items import Item, output_text
from octavo.dialects.openai.responses.record import output_id
from octavo.dialects.openai.responses.text_argument import TextArgument
from octavo.dialects.parsing import CallDelta, ContentDelta, Delta, ReasoningDelta
from octavo.terms.messages import Chunk, TokenLogprob

Emit = Callable[..., None]
"""Takes the type of an event and its fields."""


class _OpenItem:
    """The item that grows now."""

    kind: str

    def __init__(self, job_id: str, index: int, emit: Emit) -> None:
        self.id = output_id(self.kind, job_id, index)
        self._index = index
        self._emit = emit
        self._pieces: list[str] = []

    def _tell(self, event: str, **fields: Any) -> None:
        self._emit(event, item_id=self.id, output_index=self._index, **fields)

    def _begun(self, item: Item) -> None:
        self._emit("response.output_item.added", output_index=self._index, item=item)

    def _ended(self, item: Item) -> Item:
        self._emit("response.output_item.done", output_index=self._index, item=item)
        return item


class _Message(_OpenItem):
    kind = "msg"

    def __init__(self, job_id: str, index: int, emit: Emit) -> None:
        super().__init__(job_id, index, emit)
        self._logprobs: list[Any] = []
        self._begun(self._item("in_progress", []))
        self._tell("response.content_part.added", content_index=0, part=output_text(""))

    def add(self, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        told = chat_logprobs(logprobs)["content"] if logprobs else []
        self._pieces.append(text)
        self._logprobs += told
        self._tell("response.output_text.delta", content_index=0, delta=text, logprobs=told)

    def end(self, status: str) -> Item:
        text, logprobs = "".join(self._pieces), self._logprobs
        part = output_text(text, logprobs)
        self._tell("response.output_text.done", content_index=0, text=text, logprobs=logprobs)
        self._tell("response.content_part.done", content_index=0, part=part)
        return self._ended(self._item(status, [part]))

    def _item(self, status: str, content: list[Any]) -> Item:
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}


class _Thought(_OpenItem):
    kind = "rs"

    def __init__(self, job_id: str, index: int, emit: Emit) -> None:
        super().__init__(job_id, index, emit)
        self._begun(self._item("in_progress", []))
        self._tell("response.content_part.added", content_index=0, part={"type": "reasoning_text", "text": ""})

    def add(self, text: str) -> None:
        self._pieces.append(text)
        self._tell("response.reasoning_text.delta", content_index=0, delta=text)

    def end(self, status: str) -> Item:
        part = {"type": "reasoning_text", "text": "".join(self._pieces)}
        self._tell("response.reasoning_text.done", content_index=0, text=part["text"])
        self._tell("response.content_part.done", content_index=0, part=part)
        return self._ended(self._item(status, [part]))

    def _item(self, status: str, content: list[Any]) -> Item:
        return {"type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content}


class _FunctionCall(_OpenItem):
    kind = "fc"

    def __init__(self, job_id: str, index: int, emit: Emit, call: CallDelta) -> None:
        super().__init__(job_id, index, emit)
        self._call_id, self._name = call.id, call.name
        self._begun(self._item("in_progress", ""))

    def add(self, arguments: str) -> None:
        self._pieces.append(arguments)
        self._tell("response.function_call_arguments.delta", delta=arguments)

    def end(self, status: str) -> Item:
        arguments = "".join(self._pieces)
        self._tell("response.function_call_arguments.done", name=self._name, arguments=arguments)
        return self._ended(self._item(status, arguments))

    def _item(self, status: str, arguments: str) -> Item:
        names = {"call_id": self._call_id, "name": self._name, "arguments": arguments}
        return {"type": "function_call", "id": self.id, "status": status, **names}


class _CustomCall(_OpenItem):
    kind = "ctc"

    def __init__(self, job_id: str, index: int, emit: Emit, call: CallDelta) -> None:
        super().__init__(job_id, index, emit)
        self._call_id, self._name = call.id, call.name
        self._argument = TextArgument()
        self._begun(self._item("in_progress", ""))

    def add(self, arguments: str) -> None:
        self._say(self._argument.add(arguments))

    def end(self, status: str) -> Item:
        self._say(self._argument.end())
        text = "".join(self._pieces)
        self._tell("response.custom_tool_call_input.done", input=text)
        return self._ended(self._item(status, text))

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self._tell("response.custom_tool_call_input.delta", delta=text)

    def _item(self, status: str, text: str) -> Item:
        names = {"call_id": self._call_id, "name": self._name, "input": text}
        return {"type": "custom_tool_call", "id": self.id, "status": status, **names}


class Output:
    """All items of one response. `emit` is called for each event, with its type and its fields. `custom` are the names
    of tools whose calls are texts.

    The text is parsed token by token, so where chunks begin and end changes no event.
    """

    def __init__(self, job_id: str, parser: AnswerParser, emit: Emit, custom: Collection[str] = ()) -> None:
        self.items: list[Item] = []
        self._told = ToldLogprobs()
        self.reasoning_tokens = 0
        self._job_id = job_id
        self._emit = emit
        self._parser = parser
        self._custom = custom
        self._is_parsed = self._opened = False
        self._open: _Message | _Thought | _FunctionCall | _CustomCall | None = None
        self._logprobs: list[TokenLogprob] = []  # of tokens whose text is still to come

    def add(self, chunk: Chunk) -> None:
        """More tokens."""
        if chunk.format is not None:
            self._opened = chunk.format.opened
        last = len(chunk.token_ids) - 1
        for i, (token, text) in enumerate(zip(chunk.token_ids, chunk.texts, strict=True)):
            reason = chunk.finish_reason if i == last else None
            if chunk.logprobs is not None:
                one = Chunk(0, (token,), (text,), (chunk.logprobs[i],), reason)
                self._logprobs += [item for item, _ in self._told.add(one)]
            deltas = self._feed(Chunk(0, (token,), (text,), None, reason, chunk.format))
            has_thought = any(isinstance(delta, ReasoningDelta) for delta in deltas)
            self.reasoning_tokens += has_thought or (not deltas and self._is_thinking)

    def end(self, *, complete: bool) -> None:
        """No more will come. `complete`: the model itself ended its answer; a message is there even if it is empty."""
        if not self._is_parsed:
            self._feed(Chunk(finish_reason="abort"))
        if complete and not self.items and self._open is None:
            self._open = _Message(self._job_id, 0, self._emit)
        self._close("completed" if complete else "incomplete")

    @property
    def _is_thinking(self) -> bool:
        if self._open is None:
            return self._opened and not self.items
        return isinstance(self._open, _Thought)

    def _feed(self, chunk: Chunk) -> list[Delta]:
        deltas = self._parser.feed(chunk)
        for delta in deltas:
            self._grow(delta)
        self._is_parsed = chunk.finish_reason is not None
        return deltas

    def _grow(self, delta: Delta) -> None:
        logprobs, self._logprobs = self._logprobs, []
        match delta:
            case ContentDelta(text):
                if not isinstance(self._open, _Message):
                    self._open = _Message(self._job_id, self._next(), self._emit)
                self._open.add(text, logprobs)
            case ReasoningDelta(text):
                if not isinstance(self._open, _Thought):
                    self._open = _Thought(self._job_id, self._next(), self._emit)
                self._open.add(text)
            case CallDelta(_, _, name, arguments):
                if name is not None:
                    kind = _CustomCall if name in self._custom else _FunctionCall
                    self._open = kind(self._job_id, self._next(), self._emit, delta)
                if arguments and isinstance(self._open, _FunctionCall | _CustomCall):
                    self._open.add(arguments)

    def _next(self) -> int:
        """The index of a new item. The one before it is whole."""
        self._close("completed")
        return len(self.items)

    def _close(self, status: str) -> None:
        if self._open is not None:
            self.items.append(self._open.end(status))
            self._open = None
