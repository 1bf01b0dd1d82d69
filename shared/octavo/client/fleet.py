"""Questions of a client about the fleet: models, workers, what they keep, and what waits for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager

import redis.asyncio

from octavo.client.page_tokens import is_page_token, new_page_token
from octavo.client.pins import announce, build_pin, drop_pin, list_pins, store_pin
from octavo.client.requests import Prompt
from octavo.client.stats import StatsReader
from octavo.client.submissions import Submissions
from octavo.queue.calls import Call, run
from octavo.queue.connection import answered, errors_of
from octavo.queue.fleet import known_models, live_workers, queue_depths
from octavo.queue.jobs import read_content
from octavo.queue.keys import Keys
from octavo.queue.operating.lanes import CLASSES, LaneCell, paused_lanes
from octavo.queue.overview.standing import Standing, standing
from octavo.queue.questions import Questions
from octavo.terms.fields import Priority
from octavo.terms.fleet import FleetStats, PausedLane
from octavo.terms.messages import TokenizerAnswer, WorkerMap
from octavo.terms.models import JobRequest
from octavo.terms.workers import ModelCard, PinnedPrefix, PrefixPin, WorkerInfo, WorkerMemory


class FleetQueries:
    """The part of `AsyncClient` that is about no job of its own."""

    _url: str
    _tenant: str
    _keys: Keys
    _redis: redis.asyncio.Redis
    _submissions: Submissions
    _questions: Questions

    async def models(self) -> list[ModelCard]:
        """All models that jobs are accepted for, by name."""
        async with self._asking():
            return await known_models(self._redis, self._keys)

    async def workers(self) -> list[WorkerInfo]:
        """All workers whose heartbeat is fresh, by id."""
        async with self._asking():
            return await live_workers(self._redis, self._keys)

    async def worker_memory(self, worker_id: str) -> WorkerMemory:
        """A worker's KV memory now: it is asked, which costs its engine 0.6 ms for 8,000 blocks. Raises WorkerNotFound,
        also for one that does not answer within three seconds, such as one that loads its model."""
        async with self._asking():
            return await self._questions.memory(worker_id)

    async def worker_map(self, worker_id: str) -> WorkerMap:
        """Every block of a worker's KV memory with the job that has it. Its engine is asked, which costs it 0.6 ms for
        80,000 blocks. Raises WorkerNotFound as `worker_memory` does."""
        async with self._asking():
            return await self._questions.map(worker_id)

    async def tokenize(self, request: JobRequest) -> TokenizerAnswer:
        """The tokens of the prompt that a job would have, from any worker of its model. Raises InvalidRequest, and
        WorkerNotFound if none answers."""
        async with self._asking():
            return await self._questions.tokenize(request)

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """The text of token ids. Raises as `tokenize` does."""
        async with self._asking():
            return (await self._questions.detokenize(model, token_ids)).text

    async def pin_prefix(
        self,
        name: str,
        *,
        model: str,
        system: str | None = None,
        prompt: Prompt | None = None,
        tenant: str | None = None,
    ) -> PrefixPin:
        """Have every worker of a model keep a prefix in its KV memory, also those that start later, in place of the one
        that the tenant had under this name: the `system` message of chat requests, or the beginning of prompts (text or
        token ids). Jobs of this tenant find it; `pins` tells what each worker made of it. Raises InvalidRequest,
        UnknownModel."""
        pin = build_pin(name, model, tenant or self._tenant, system, prompt)
        async with self._asking():
            pin = await store_pin(self._redis, self._keys, pin)
            await announce(self._redis, self._keys, pin.model)
        return pin

    async def unpin_prefix(self, name: str, *, model: str, tenant: str | None = None) -> bool:
        """Leave a pinned prefix to the cache again. Whether there was one."""
        async with self._asking():
            dropped = await drop_pin(self._redis, self._keys, model, tenant or self._tenant, name)
            await announce(self._redis, self._keys, model)
        return dropped

    async def pins(self, model: str | None = None) -> list[PinnedPrefix]:
        """The pinned prefixes of a model, or of all, with what has become of them on each live worker."""
        models = [model] if model is not None else [card.name for card in await self.models()]
        workers = await self.workers()
        async with self._asking():
            return await list_pins(self._redis, self._keys, models, workers)

    async def pause(self, model: str, priority: Priority | None = None) -> int:
        """Pause the lanes of a model, or that of one class: jobs wait, and no worker claims them. Those that run go on,
        also at another worker. How many lanes were not paused before. Raises UnknownModel."""
        return await self._change(LaneCell(self._keys).pause(model, _classes(priority)))

    async def resume(self, model: str, priority: Priority | None = None) -> int:
        """Let the lanes of a model go on, or that of one class. How many were paused. Raises UnknownModel."""
        return await self._change(LaneCell(self._keys).resume(model, _classes(priority)))

    async def paused_lanes(self) -> list[PausedLane]:
        """The lanes that are paused."""
        async with self._asking():
            return await paused_lanes(self._redis, self._keys)

    async def _change(self, call: Call[int]) -> int:
        with self._errors():
            return await run(self._redis, call)

    def stats_reader(self) -> StatsReader:
        """Readings of lanes, workers, batches and dead letters, one after the other."""
        return StatsReader(self._redis, self._keys, self._asking)

    async def stats(self) -> FleetStats:
        """The fleet now, without rates, which need several readings."""
        return await self.stats_reader().read()

    async def job_content(self, job_id: str) -> tuple[JobRequest | None, tuple[str, ...]]:
        """A job's request, None once it has ended, and the texts of its sequences so far; neither of one that was
        erased. Raises JobNotFound."""
        async with self._asking():
            return await read_content(self._redis, job_id)

    async def new_page_token(self, tenant: str) -> str:
        """A token for a page that was loaded for an operator."""
        async with self._asking():
            return await new_page_token(self._redis, self._keys, tenant)

    async def is_page_token(self, token: str, tenant: str) -> bool:
        """True if it was given to a page of this tenant."""
        async with self._asking():
            return await is_page_token(self._redis, self._keys, token, tenant)

    async def queue_depths(self) -> dict[str, int]:
        """Jobs that wait, by model; 0 for a model whose queue is empty."""
        async with self._asking():
            return await queue_depths(self._redis, self._keys)

    async def standing(self) -> Standing:
        """How the queue stands: what waits by model and class, and what was counted in it."""
        async with self._asking():
            return await standing(self._redis, self._keys)

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        with self._errors():
            async with answered():
                yield

    def _errors(self) -> AbstractContextManager[None]:
        return errors_of(self._url, self._submissions.note_outage)


def _classes(priority: Priority | None) -> tuple[Priority, ...]:
    return CLASSES if priority is None else (priority,)
