"""A job's log as a stream of JSON messages: one a token, one at the end. How it is stored, and cut into reads, does not
show in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Self

from octavo.dialects.events import end_json, single_tokens, tokens_json
from octavo.queue.pages import Page
from octavo.terms.models import Event
from octavo.terms.positions import Position

_MOST_CHARACTERS = 128 * 1024  # of an answer, about: it is whole in memory until its client has it
_LOGPROB = 100  # characters
_DIGITS = 12  # as many for every offset: they are compared as text
_END = "_1"
_OFFSET = re.compile(rf"(\d{{{_DIGITS}}})(?:\.([0-9a-f]{{8}}))?({_END})?", re.ASCII)


@dataclass(frozen=True, order=True)
class Offset:
    """A place between two messages: so many tokens, and the end if it was read, are before it. Of a job with several
    sequences it names the claim that wrote the last of them; of two that differ in that alone none is before the other.
    """

    tokens: int = 0
    ended: bool = False
    epoch: str = field(default="", compare=False)

    def __str__(self) -> str:
        epoch = f".{self.epoch}" if self.epoch else ""
        return f"{self.tokens:0{_DIGITS}d}{epoch}{_END if self.ended else ''}"

    @property
    def position(self) -> str:
        return str(Position(self.tokens, self.epoch))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what no reader was given."""
        found = _OFFSET.fullmatch(text)
        if found is None:
            raise ValueError(f"no offset of this stream: {text[:40]!r}")
        return cls(int(found[1]), found[3] is not None, found[2] or "")


@dataclass(frozen=True)
class Batch:
    """Consecutive messages, and where their reader stands behind them. `up_to_date`: there are no more yet. `closed`:
    there never will be."""

    messages: tuple[str, ...]
    next: Offset
    up_to_date: bool
    closed: bool

    @property
    def body(self) -> str:
        """One JSON array."""
        return "[" + ",".join(self.messages) + "]"


def batch_of_page(page: Page, start: Offset, limit: int) -> Batch:
    """At most `limit` messages of a page that was read at `start`."""
    closed = start.ended and page.info.status.is_terminal
    if closed:
        return Batch((), start, up_to_date=True, closed=True)
    events = chain.from_iterable(map(_single, page.events))
    batch = batch_of_events(_as_many(events, limit), start)
    return Batch(batch.messages, batch.next, page.is_last and next(events, None) is None, batch.closed)


def batch_of_events(events: Iterable[Event], start: Offset) -> Batch:
    """The messages of events that came behind `start`, the last of them the latest there is."""
    messages, after = [], replace(start, ended=False)
    for event in chain.from_iterable(map(_single, events)):
        after = Offset(event.offset, event.end is not None, event.epoch)
        messages.append(tokens_json(event) if event.end is None else end_json(event.offset, event.end))
    return Batch(tuple(messages), after, up_to_date=True, closed=after.ended)


def _as_many(events: Iterator[Event], limit: int) -> Iterator[Event]:
    """At most `limit`, and no more than fit an answer, but one."""
    size = 0
    for event in islice(events, limit):
        yield event
        logprobs = () if event.chunk is None else event.chunk.logprobs or ()
        size += len(event.text) + _LOGPROB * sum(1 + len(item.top) for item in logprobs)
        if size >= _MOST_CHARACTERS:
            return


def _single(event: Event) -> Iterable[Event]:
    return single_tokens(event) if event.end is None else (event,)
