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
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError, RedisError, ResponseError

from octavo.client.reader import POLL_S, Reader
from octavo.client.submissions import Submissions
from octavo.queue import wire
from octavo.queue.calls import run
from octavo.queue.connection import answered, is_denied, is_final
from octavo.queue.jobs import as_status, damaged, locate, read_ended
from octavo.queue.keys import JobHash
from octavo.queue.order import FIELDS as ORDER_FIELDS
from octavo.queue.order import Order, order_of, run_of
from octavo.queue.protocol import Cell
from octavo.queue.streams import PAGE, has_gap, in_order, page_query, parse_entries
from octavo.terms.errors import JobNotFound, MalformedMessage
from octavo.terms.models import Event
from octavo.terms.positions import Position

_BACKOFF_S = (0.05, 1.0)
_PATIENCE_S = 60.0  # how long a stream survives an unreachable server
_PING_S = 15.0
_POLL_BATCH = 200


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
        self._readers: dict[str, list[Reader]] = {}
        self._expected: dict[str, Reader] = {}
        self._hearing = self._has_heard = self._closed = False
        self._may_attach = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None

    def expect(self, job_id: str) -> str:
        """Keep what is published about a job from now on for its first `events`. Returns the id to enqueue it with.

        A reader that is not asked for by the next poll is dropped: `events` then begins like any other.
        """
        reader = Reader(locate(job_id), job_id, Position(), behind=not self._hearing, begun=True)
        self._expected[job_id] = reader
        self._register(reader)
        return self.id

    def forget(self, job_id: str) -> None:
        """An expected job was not enqueued after all, or its events are not wanted."""
        if (reader := self._expected.pop(job_id, None)) is not None:
            self._unregister(reader)

    async def events(self, job_id: str, after: Position) -> AsyncGenerator[Event, None]:
        """Every event beyond a position, as it comes, the end last. Raises JobNotFound, and ServerUnavailable if the
        server cannot be reached at the start, or for a minute later on."""
        reader = self._expected.pop(job_id, None) if after.offset == 0 else None
        if reader is None:
            reader = Reader(locate(job_id), job_id, after)
            self._register(reader)
        try:
            while not reader.ended:
                if self._closed:
                    raise RuntimeError(f"the client was closed while it followed job {job_id}, which goes on")
                if reader.reset:
                    reader.reset = False
                    yield Event(offset=0, reset=True)
                elif reader.behind:
                    for event in await self._catch_up(reader):
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

    async def _catch_up(self, reader: Reader) -> list[Event]:
        """The next page of the stream, none where it is to be read from its beginning. The reader is not behind any
        more if that was the last one."""
        reader.behind = False  # from here on live entries are kept, so nothing falls between page and live
        reader.live.clear()
        with self._errors():
            events = await self._patiently(reader)
        if len(events) == PAGE and not events[-1].end:
            reader.behind = True
        return events

    async def _patiently(self, reader: Reader) -> list[Event]:
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

    async def _page(self, reader: Reader) -> list[Event]:
        """A page of the stream, or what is left of a job whose stream has expired. The order matters: attach before
        reading, so that what comes later is heard; status before reading, so that an ended job shows its end if it has
        one."""
        doubts = reader.doubts
        status, entries, order = await self._read(reader)
        existed = False
        while status is None and not existed:  # forgotten after it was attached to, and perhaps known again by now
            existed = await self._exists(reader)
            status, entries, order = await self._read(reader)
        if not await self._holds(reader, order):
            reader.start_over()
            return []
        reader.settled = doubts
        events = parse_entries(entries, reader.read, order)
        if (state := as_status(status)) is None:
            raise damaged(reader.job_id)
        has_ended = state.is_terminal
        if has_ended and (has_gap(events, reader.read) or (len(events) < PAGE and not (events and events[-1].end))):
            return in_order(await read_ended(self._commands, reader.job_id, reader.read), order)
        if has_gap(events, reader.read):
            raise damaged(reader.job_id)
        return events

    async def _holds(self, reader: Reader, order: Order) -> bool:
        """True if the stream goes on from the place that a reader has reached."""
        holds = order.holds(reader.place)
        if holds is not None or not reader.is_doubted:
            return holds is not False
        async with answered():
            return run_of(await self._commands.info("server")) == order.run

    async def _read(self, reader: Reader) -> tuple[bytes | None, list[Any], Order]:
        """The status of a job, the next page of its entries as they come, and the order that they have."""
        while not await self._attach(reader):
            if not await self._submissions.restore(reader.job_id):
                raise JobNotFound(f"no job {reader.job_id}: it never existed or its result has expired")
        reader.begun = True
        pipeline = self._commands.pipeline(transaction=False)
        pipeline.hmget(reader.keys.job(reader.job_id), JobHash.STATUS, JobHash.PROGRESS)
        pipeline.xrange(*page_query(reader.job_id, reader.read))
        pipeline.hmget(reader.keys.job(reader.job_id), *ORDER_FIELDS)
        async with answered():
            (status, reader.progress), entries, order = await pipeline.execute()
        return status, entries, order_of(order)

    async def _attach(self, reader: Reader) -> bool:
        """True if there is such a job. A user that may only read hears of nothing: polls find new entries."""
        if self._may_attach:
            try:
                return await run(self._commands, self._cell.attach(reader.job_id, self.id)) is not None
            except ResponseError as error:
                if not is_denied(error):
                    raise
            self._may_attach = False  # the server writes down whatever it refuses: once is enough
        return await self._exists(reader)

    async def _exists(self, reader: Reader) -> bool:
        async with answered():
            return bool(await self._commands.exists(reader.keys.job(reader.job_id)))

    def _register(self, reader: Reader) -> None:
        self._readers.setdefault(reader.job_id, []).append(reader)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())

    def _unregister(self, reader: Reader) -> None:
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
            if job_id not in self._readers and self._may_attach:
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
                for reader in [reader for readers in self._readers.values() for reader in readers]:
                    (reader.doubt if self._has_heard else reader.fall_behind)()  # what was published went unheard
                self._has_heard = True
            elif message["type"] == "message":
                self._deliver(message["data"])
            quiet = message is None

    def _deliver(self, data: bytes) -> None:
        with suppress(MalformedMessage):  # a stranger on the channel: the poll makes up for it
            for job_id, entry_id, payload in wire.decode_live(data):
                for reader in self._readers.get(job_id.decode(errors="replace"), ()):
                    reader.offer(entry_id, payload)

    async def _poll(self) -> None:
        while self._readers:
            unasked = list(self._expected)
            await asyncio.sleep(POLL_S[0])
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

    async def _check(self, readers: list[Reader], now: float) -> None:
        pipeline = self._commands.pipeline(transaction=False)
        for reader in readers:
            pipeline.hmget(reader.keys.job(reader.job_id), JobHash.STATUS, JobHash.TOKENS)
        async with answered():
            states = await pipeline.execute(raise_on_error=False)
        for reader, state in zip(readers, states, strict=True):
            reader.poll_every = min(2 * reader.poll_every, POLL_S[1])
            reader.poll_at = now + reader.poll_every
            if (
                isinstance(state, Exception)
                or state[0] not in (b"queued", b"running")
                or state[1] != b"%d" % reader.read
            ):
                reader.fall_behind()
