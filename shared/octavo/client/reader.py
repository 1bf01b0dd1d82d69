"""A consumer's position in a stream, and the events that it has heard."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from octavo.queue import wire
from octavo.queue.keys import Keys
from octavo.queue.streams import parse_entry
from octavo.terms.models import Event
from octavo.terms.positions import Position

_PROGRESS = b"progress"  # in place of an entry's id: not part of the stream
_BUFFER_ENTRIES = 256
POLL_S = (1.0, 8.0)
"""After one second of silence, then less and less often: a poll only guards against lost messages."""


@dataclass(eq=False)
class Reader:
    """One consumer of one stream. `behind`: something is missing, read the stream from `read`.

    `offset` counts what the consumer has and `read` what was read of the stream, whose last token is of `epoch`. They
    are the same but after `start_over`, until all is read again that is `known` of each sequence.
    """

    keys: Keys
    job_id: str
    first: Position
    doubts: int = 0  # how often the server may have forgotten tokens
    settled: int = 0  # of these, those that turned out to have changed nothing
    reset: bool = False  # the consumer is to be told that it gets the stream from its beginning again
    behind: bool = True
    ended: bool = False
    live: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    progress: bytes | None = None  # the latest word, if it was not passed on yet
    waiting: asyncio.Future[None] | None = None
    begun: bool = False  # the server knows that it is followed, or will with the job
    poll_at: float = 0.0
    poll_every: float = POLL_S[0]

    def __post_init__(self) -> None:
        self.offset = self.read = self.first.offset
        self.epoch = self.first.epoch
        self.doubts = int(self.read > 0)
        self.heard: Counter[int] = Counter()  # tokens of each sequence
        self.known: Counter[int] = Counter()

    @property
    def is_doubted(self) -> bool:
        return self.doubts != self.settled

    @property
    def place(self) -> Position:
        """Entries that were read of the stream."""
        return Position(self.read, self.epoch)

    def take(self, event: Event) -> Event | None:
        """The part of the stream's next event that the consumer does not have."""
        self.read, self.epoch = event.offset, event.epoch
        if event.chunk is None:
            self.ended = event.end is not None
            return event
        index, count = event.chunk.index, len(event.chunk.token_ids)
        if not self.known:
            self.heard[index] += count
            self.offset = event.offset
            return event
        known = min(self.known[index], count)
        self.known -= Counter({index: known})
        self.heard[index] += count - known
        self.offset += count - known
        if known == count:
            return None
        epoch = "" if self.known else event.epoch  # until all is read again the consumer's order is no claim's
        return Event(offset=self.offset, chunk=event.chunk.after(known), epoch=epoch)

    def take_heard(self) -> Event | None:
        """The next event that was heard, unless the consumer has it, or something is missing before it."""
        if not self.live:
            told, self.progress = wire.decode_progress(self.progress or b""), None
            return Event(offset=self.offset, progress=told, epoch="" if self.known else self.epoch)
        event = parse_entry(*self.live.popleft(), self.read)
        if event.end is None and event.offset <= self.read:
            return None
        if event.offset - len(event.token_ids) != self.read:
            self.fall_behind()
            return None
        return self.take(event)

    def doubt(self) -> None:
        """A server that comes back may have forgotten tokens."""
        self.doubts += 1
        self.fall_behind()

    def start_over(self) -> None:
        """The place that was reached holds no more: tokens of each sequence are the same, but they come in another
        order. What of each sequence was before the place that was resumed from cannot be told."""
        if self.first.offset:
            self.first, self.offset, self.reset = Position(), 0, True
            self.heard = Counter()
        self.read, self.epoch, self.known = 0, "", self.heard.copy()
        self.fall_behind()

    def offer(self, entry_id: bytes, payload: bytes) -> None:
        if entry_id == _PROGRESS:
            self.progress = payload
            self.wake()
            return
        if self.behind:
            return
        if len(self.live) >= _BUFFER_ENTRIES:  # a slow consumer: it pages at its own speed from here on
            self.fall_behind()
            return
        self.live.append((entry_id, payload))
        self.progress = None  # what it foretold is here
        self.wake()

    def fall_behind(self) -> None:
        self.behind = True
        self.live.clear()
        self.wake()

    def wake(self) -> None:
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(None)

    async def wait(self) -> None:
        """Until there is something to see. A bare future, because this is once a token and an Event does more."""
        loop = asyncio.get_running_loop()
        self.poll_every = POLL_S[0]
        self.poll_at = loop.time() + self.poll_every
        self.waiting = loop.create_future()
        await self.waiting
