"""Results of a parser: pieces of content, of reasoning and of tool calls, and their sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thoughts before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """The beginning of call `index` (counted from 0), which has an id and a name, or more of its arguments."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Delta = ContentDelta | ReasoningDelta | CallDelta


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call. `arguments` are JSON as far as the model wrote JSON: a sequence that was cut leaves them cut."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole text, taken apart."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


def assemble(deltas: Iterable[Delta]) -> Parsed:
    """The sum of all deltas of one sequence."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, str, list[str]]] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case CallDelta(index, call_id, name, arguments):
                if name is not None and call_id is not None:
                    calls.append((call_id, name, []))
                calls[index][2].append(arguments)
    whole = tuple(Call(call_id, name, "".join(arguments)) for call_id, name, arguments in calls)
    return Parsed("".join(content), "".join(reasoning), whole)


class Prose:
    """Text of one kind. Seams, where calls or thoughts were taken out of it, leave no white space behind: what stands
    there counts only between two pieces of text.

    `watch` is told how many of the characters that were read last are text for certain: not white space at a seam.
    """

    def __init__(self, emit: Callable[[str], None], *, holds_space: bool) -> None:
        self.watch: Callable[[int], None] = _look_away
        self._emit = emit
        self._holds_space = holds_space
        self._space = ""  # white space that may turn out to be the end of a piece
        self._begun = False
        self._at_seam = False

    def add(self, text: str) -> None:
        """More text."""
        self.watch(len(text.lstrip() if self._at_seam else text))
        if not self._holds_space:
            self._emit(text)
            return
        if self._at_seam and not self._begun:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            self._space += text
            return
        self._emit(self._space + body)
        self._space = text[len(body) :]
        self._begun, self._at_seam = True, False

    def seam(self, *, apart: bool = False) -> None:
        """Something was taken out here. `apart`: what follows begins a line of its own."""
        self._at_seam = True
        if not self._begun:
            self._space = ""
        elif apart and not self._space:
            self._space = "\n"

    def end(self) -> None:
        """No more text will come."""
        if self._space and not self._at_seam:
            self._emit(self._space)
        self._space = ""


class Answer:
    """The deltas of one sequence. `call_id` gives the id of the call with an index.

    `holds_space` is false for a text that is only passed on, without seams.
    """

    def __init__(self, call_id: Callable[[int], str], *, holds_space: bool) -> None:
        self.content = Prose(lambda text: self._add(ContentDelta(text)), holds_space=holds_space)
        self.reasoning = Prose(lambda text: self._add(ReasoningDelta(text)), holds_space=holds_space)
        self._call_id = call_id
        self._calls = 0
        self._ids: set[str] = set()
        self._deltas: list[Delta] = []

    def begin_call(self, name: str, own_id: str | None = None) -> None:
        """A call, with the id that the model itself gave it, if any and if it gave no other call the same."""
        self.content.seam()
        self.reasoning.seam()
        call_id = self._call_id(self._calls) if own_id is None or own_id in self._ids else own_id
        self._ids.add(call_id)
        self._add(CallDelta(self._calls, call_id, name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """More arguments of the last call."""
        self._add(CallDelta(self._calls - 1, arguments=text))

    def end(self) -> None:
        """No more text will come."""
        self.reasoning.end()
        self.content.end()

    def take(self) -> list[Delta]:
        """The deltas since the last call, neighbours of one kind joined."""
        taken, self._deltas = self._deltas, []
        return taken if len(taken) < 2 else [_joined(list(group)) for _, group in groupby(taken, _kind)]

    def _add(self, delta: Delta) -> None:
        self._deltas.append(delta)


def _look_away(_: int) -> None:
    pass


def _kind(delta: Delta) -> tuple[type, int, bool]:
    """Equal for deltas that may be joined."""
    if isinstance(delta, CallDelta):
        return CallDelta, delta.index, delta.name is None
    return type(delta), 0, True


def _joined(deltas: list[Delta]) -> Delta:
    """One delta for several of one kind."""
    match deltas[0]:
        case CallDelta(index, call_id, name):
            arguments = "".join(delta.arguments for delta in deltas if isinstance(delta, CallDelta))
            return CallDelta(index, call_id, name, arguments)
        case kind:
            text = "".join(delta.text for delta in deltas if not isinstance(delta, CallDelta))
            return type(kind)(text)
