"""Any number of live streams over a constant number of connections.

One pub/sub connection hears of new entries, everything else goes through the command pool. A reader trusts neither:
it knows the offset it has reached, drops what it has, and reads the stream itself from there whenever something is
missing: at its start, after a reconnect, on a gap, when its buffer ran over, and when a poll finds more than it heard.
Only a job that is yet to be enqueued needs no reading at the start: its enqueue call names the subscriber, which
hears of everything from the first token on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError, RedisError, ResponseError

from octavo import wire
from octavo.calls import run
from octavo.connection import answered, is_denied, is_final
from octavo.errors import JobNotFound, MalformedMessage
from octavo.jobs import as_status, damaged, locate
from octavo.keys import JobHash, Keys
from octavo.models import Event
from octavo.protocol import Cell
from octavo.streams import PAGE, events_of_result, has_gap, page_query, parse_entries, parse_entry
from octavo.submissions import Submissions

_PROGRESS = b"progress"  # in place of an entry's id: not part of the stream
_BUFFER_ENTRIES = 256
_POLL_S = (1.0, 8.0)  # after one second of silence, then less and less often: a poll only guards against lost messages
_BACKOFF_S = (0.05, 1.0)
_PATIENCE_S = 60.0  # how long a stream survives an unreachable server
_PING_S = 15.0
_POLL_BATCH = 200


@dataclass(eq=False)
class _Reader:
    """One consumer of one stream. `behind`: something is missing, read the stream from `read`.

    `offset` counts what the consumer has and `read` what was read of the stream. They are the same but after
    `start_over`, until all is read again that is `known` of each sequence.
    """

    keys: Keys
    job_id: str
    first: int
    turn: int = 0  # how often it was read from the beginning
    several: bool = True  # the job has several sequences, for all that is known
    reset: bool = False  # the consumer is to be told that it gets the stream from its beginning again
    behind: bool = True
    ended: bool = False
    live: deque[tuple[bytes, bytes]] = field(default_factory=deque)
    progress: bytes | None = None  # the latest word, if it was not passed on yet
    waiting: asyncio.Future[None] | None = None
    begun: bool = False  # the server knows that it is followed, or will with the job
    poll_at: float = 0.0
    poll_every: float = _POLL_S[0]

    def __post_init__(self) -> None:
        self.offset = self.read = self.first
        self.heard: Counter[int] = Counter()  # tokens of each sequence
        self.known: Counter[int] = Counter()

    def take(self, event: Event) -> Event | None:
        """What the consumer does not have of the next event of the stream."""
        self.read = event.offset
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
        return Event(offset=self.offset, chunk=event.chunk.after(known)) if known < count else None

    def take_heard(self) -> Event | None:
        """The next event that was heard, unless the consumer has it, or something is missing before it."""
        if not self.live:
            told, self.progress = wire.decode_progress(self.progress or b""), None
            return Event(offset=self.offset, progress=told)
        event = parse_entry(*self.live.popleft(), self.read)
        if event.end is None and event.offset <= self.read:
            return None
        if event.offset - len(event.token_ids) != self.read:
            self.fall_behind()
            return None
        return self.take(event)

    def start_over(self) -> None:
        """A server that comes back may have forgotten tokens. If their job was begun anew, those of each sequence are
        the same, but between those of several sequences the order may be another one."""
        if self.begun and self.several and self.first:
            self.void()
        elif self.begun and self.several and self.read:
            self.read, self.known = self.first, self.heard.copy()
            self.turn += 1
        self.fall_behind()

    def void(self) -> None:
        """The offset that was resumed from holds no more: what of each sequence is before it cannot be told."""
        self.first = self.read = self.offset = 0
        self.heard, self.known = Counter(), Counter()
        self.reset = True
        self.turn += 1

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
        self.poll_every = _POLL_S[0]
        self.poll_at = loop.time() + self.poll_every
        self.waiting = loop.create_future()
        await self.waiting


class Subscriber:
    """The streams of one process. `commands` is its pool, `listener` a client whose connections never retry;
    `submissions` may restore jobs that the server has forgotten. Within `errors()` redis-py's become the client's."""

    def __init__(
        self,
        commands: redis.asyncio.Redis,
        listener: redis.asyncio.Redis,
        cell: Cell,
        submissions: Submissions,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.id = secrets.token_hex(8)
        self._commands = commands
        self._listener = listener
        self._cell = cell
        self._submissions = submissions
        self._errors = errors
        self._readers: dict[str, list[_Reader]] = {}
        self._expected: dict[str, _Reader] = {}
        self._hearing = self._has_heard = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None

    def expect(self, job_id: str) -> str:
        """Keep what is published about a job from now on for its first `events`. Returns the id to enqueue it with.

        A reader that is not asked for by the next poll is dropped: `events` then begins like any other.
        """
        reader = _Reader(locate(job_id), job_id, 0, behind=not self._hearing, begun=True)
        self._expected[job_id] = reader
        self._register(reader)
        return self.id

    def forget(self, job_id: str) -> None:
        """An expected job was not enqueued after all, or its events are not wanted."""
        if (reader := self._expected.pop(job_id, None)) is not None:
            self._unregister(reader)

    async def events(self, job_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """Every event beyond offset `after`, as it comes, the end last. Raises JobNotFound, and ServerUnavailable if
        the server cannot be reached at the start, or for a minute later on."""
        reader = self._expected.pop(job_id, None) if after == 0 else None
        if reader is None:
            reader = _Reader(locate(job_id), job_id, after)
            self._register(reader)
        try:
            while not reader.ended:
                if self._closed:
                    raise RuntimeError(f"the client was closed while it followed job {job_id}, which goes on")
                if reader.reset:
                    reader.reset = False
                    yield Event(offset=0, reset=True)
                elif reader.behind:
                    turn = reader.turn
                    if turn == 0 and reader.first and not reader.begun and not await self._holds(reader):
                        reader.void()
                        continue
                    for event in await self._catch_up(reader):
                        if reader.turn != turn:
                            break
                        if new := reader.take(event):
                            yield new
                elif reader.live or reader.progress is not None:
                    if new := reader.take_heard():
                        yield new
                else:
                    await reader.wait()
        finally:
            self._unregister(reader)

    async def close(self) -> None:
        """Stop listening. Readers that wait for an event get a RuntimeError; streams that are left send nothing."""
        self._closed = True
        for reader in [reader for readers in self._readers.values() for reader in readers]:
            reader.wake()
        tasks = [task for task in (self._listening, self._polling, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _catch_up(self, reader: _Reader) -> list[Event]:
        """The next page of the stream. The reader is not behind any more if that was the last one."""
        reader.behind = False  # from here on live entries are kept, so nothing falls between page and live
        reader.live.clear()
        with self._errors():
            events = await self._patiently(reader)
        if len(events) == PAGE and not events[-1].end:
            reader.behind = True
        return events

    async def _holds(self, reader: _Reader) -> bool:
        with self._errors():
            return await run(self._commands, self._cell.holds_order(reader.job_id))

    async def _patiently(self, reader: _Reader) -> list[Event]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        backoff = _BACKOFF_S[0]
        while True:
            try:
                return await self._page(reader)
            except (RedisError, OSError) as error:
                if not reader.begun or loop.time() >= deadline or is_final(error):
                    raise
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _BACKOFF_S[1])

    async def _page(self, reader: _Reader) -> list[Event]:
        """A page of the stream, or what is left of a job whose stream has expired. The order matters: attach before
        reading, so that what comes later is heard; status before reading, so that an ended job shows its end if it has
        one."""
        while not await self._attach(reader):
            if not await self._submissions.restore(reader.job_id):
                raise JobNotFound(f"no job {reader.job_id}: it never existed or its result has expired")
        reader.begun = True
        pipeline = self._commands.pipeline(transaction=False)
        pipeline.hmget(reader.keys.job(reader.job_id), JobHash.STATUS, JobHash.PROGRESS, JobHash.RUN)
        pipeline.xrange(*page_query(reader.job_id, reader.read))
        async with answered():
            (status, reader.progress, run_id), entries = await pipeline.execute()
        reader.several = run_id is not None
        events = parse_entries(entries, reader.read)
        if (state := as_status(status)) is None:
            raise damaged(reader.job_id)
        has_ended = state.is_terminal
        if has_ended and (has_gap(events, reader.read) or (len(events) < PAGE and not (events and events[-1].end))):
            return await self._from_result(reader)
        if has_gap(events, reader.read):
            raise damaged(reader.job_id)
        return events

    async def _attach(self, reader: _Reader) -> bool:
        """Whether there is such a job. A user that may only read hears of nothing: polls find new entries."""
        try:
            return await run(self._commands, self._cell.attach(reader.job_id, self.id)) is not None
        except ResponseError as error:
            if not is_denied(error):
                raise
        async with answered():
            return bool(await self._commands.exists(reader.keys.job(reader.job_id)))

    async def _from_result(self, reader: _Reader) -> list[Event]:
        pipeline = self._commands.pipeline(transaction=False)
        pipeline.get(reader.keys.result(reader.job_id))
        pipeline.xrevrange(reader.keys.stream(reader.job_id), count=1)
        async with answered():
            data, last = await pipeline.execute()
        if data is None:  # it ended without an owner: before `read`, if the server has forgotten tokens
            if (events := parse_entries(last, reader.read)) and events[-1].end:
                return events
            raise JobNotFound(f"job {reader.job_id} has ended and its tokens have expired")
        return events_of_result(*wire.decode_result(data), after=reader.read)

    def _register(self, reader: _Reader) -> None:
        self._readers.setdefault(reader.job_id, []).append(reader)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())

    def _unregister(self, reader: _Reader) -> None:
        readers = self._readers[reader.job_id]
        readers.remove(reader)
        if readers:
            return
        del self._readers[reader.job_id]
        if reader.begun and not reader.ended and not self._closed:
            task = asyncio.create_task(self._detach(reader.job_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _detach(self, job_id: str) -> None:
        with suppress(RedisError, OSError):  # the server forgets subscribers that are gone by itself
            if job_id not in self._readers:
                await run(self._commands, self._cell.detach(job_id, self.id))

    async def _listen(self) -> None:
        backoff = _BACKOFF_S[0]
        while True:
            with suppress(RedisError, OSError):
                async with self._listener.pubsub() as channel:
                    await channel.subscribe(self._cell.keys.channel(self.id))
                    await self._receive(channel)
            self._submissions.note_outage()
            if self._hearing:  # this was not one more failed attempt
                backoff = _BACKOFF_S[0]
            self._hearing = False
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _BACKOFF_S[1])

    async def _receive(self, channel: PubSub) -> None:
        quiet = False
        while True:
            message = await channel.get_message(timeout=_PING_S)
            if message is None:
                if quiet:
                    raise ConnectionError("the server does not answer a ping")
                await channel.ping()
            elif message["type"] == "subscribe":
                self._hearing = True
                self._start_over(again=self._has_heard)  # messages published before this moment went unheard
                self._has_heard = True
            elif message["type"] == "message":
                self._deliver(message["data"])
            quiet = message is None

    def _start_over(self, *, again: bool) -> None:
        for reader in [reader for readers in self._readers.values() for reader in readers]:
            (reader.start_over if again else reader.fall_behind)()

    def _deliver(self, data: bytes) -> None:
        with suppress(MalformedMessage):  # a stranger on the channel: the poll makes up for it
            for job_id, entry_id, payload in wire.decode_live(data):
                for reader in self._readers.get(job_id.decode(errors="replace"), ()):
                    reader.offer(entry_id, payload)

    async def _poll(self) -> None:
        while self._readers:
            unasked = list(self._expected)
            await asyncio.sleep(_POLL_S[0])
            for job_id in unasked:
                self.forget(job_id)
            now = asyncio.get_running_loop().time()
            due = [
                reader
                for readers in self._readers.values()
                for reader in readers
                if not reader.behind and not reader.live and now >= reader.poll_at
            ]
            for start in range(0, len(due), _POLL_BATCH):
                with suppress(RedisError, OSError):
                    await self._check(due[start : start + _POLL_BATCH], now)

    async def _check(self, readers: list[_Reader], now: float) -> None:
        pipeline = self._commands.pipeline(transaction=False)
        for reader in readers:
            pipeline.hmget(reader.keys.job(reader.job_id), JobHash.STATUS, JobHash.TOKENS)
        async with answered():
            states = await pipeline.execute(raise_on_error=False)
        for reader, state in zip(readers, states, strict=True):
            reader.poll_every = min(2 * reader.poll_every, _POLL_S[1])
            reader.poll_at = now + reader.poll_every
            if (
                isinstance(state, Exception)
                or state[0] not in (b"queued", b"running")
                or state[1] != b"%d" % reader.read
            ):
                reader.fall_behind()
