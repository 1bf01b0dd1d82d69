"""A job's log as a stream of JSON messages: one a token, one at the end. How it is stored, and cut into reads, does not
show in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Self

from octavo.dialects.events import end_json, single_tokens, tokens_json
from octavo.queue.pages import Page
from octavo.terms.models import Event

_MOST_CHARACTERS = 128 * 1024  # of an answer, about: it is whole in memory until its client has it
_LOGPROB = 100  # characters
_DIGITS = 12  # as many for every offset: they are compared as text
_END = "_1"
_OFFSET = re.compile(rf"(\d{{{_DIGITS}}})({_END})?", re.ASCII)


@dataclass(frozen=True, order=True)
class Offset:
    """A place between two messages: so many tokens, and the end if it was read, are before it."""

    tokens: int = 0
    ended: bool = False

    def __str__(self) -> str:
        return f"{self.tokens:0{_DIGITS}d}{_END if self.ended else ''}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError for what no reader was given."""
        found = _OFFSET.fullmatch(text)
        if found is None:
            raise ValueError(f"no offset of this stream: {text[:40]!r}")
        return cls(int(found[1]), found[2] is not None)


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
    messages, after = [], Offset(start.tokens)
    for event in chain.from_iterable(map(_single, events)):
        after = Offset(event.offset, event.end is not None)
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
