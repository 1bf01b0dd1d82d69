"""Questions to workers that need no queue: what is in a worker's memory, what a model's tokenizer makes of a text.

They cost the engine nothing or little, change nothing, and may be asked again when an answer does not come.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import redis.asyncio

from octavo.queue import wire
from octavo.queue.connection import answered
from octavo.queue.fleet import live_workers, models_of
from octavo.queue.keys import Keys
from octavo.terms.errors import InvalidRequest, MalformedMessage, WorkerNotFound
from octavo.terms.messages import TokenizerAnswer, TokenizerQuestion, WorkerMap
from octavo.terms.models import JobRequest
from octavo.terms.workers import WorkerMemory

QUESTIONS_KEPT = 128
"""Most questions of a model at a time: more than workers answer in the seconds that a question is of use."""

MAP_QUESTION = "map:"
"""How the id of a question begins that asks for all blocks. A worker that does not know it answers as to any other."""

_ANSWER_S = 3.0  # workers answer between two steps
_TOKENIZER_ANSWER_S = (1.0, 2.0, 4.0)  # a worker may die with a question: another one gets it then
_QUESTION_TTL_S = 10
_LARGE_ANSWER = 256 * 1024  # bytes
_ASKING = 16  # at a time: each holds a connection


class Questions:
    """Asks for one client. `commands` is its pool, `listener` a client whose connections may wait for an answer."""

    def __init__(self, commands: redis.asyncio.Redis, listener: redis.asyncio.Redis, keys: Keys) -> None:
        self._commands = commands
        self._listener = listener
        self._keys = keys
        self._asking = asyncio.Semaphore(_ASKING)

    async def memory(self, worker_id: str) -> WorkerMemory:
        """Raises WorkerNotFound."""
        answer_id, inbox = secrets.token_hex(8), self._keys.inbox(worker_id)
        if not await self._commands.exists(self._keys.worker(worker_id)):
            raise WorkerNotFound(f"no live worker {worker_id}: `octavo workers` lists the live ones")
        answer = await self._ask(inbox, answer_id.encode(), answer_id, _ANSWER_S)
        if answer is None:
            problem = f"worker {worker_id} did not answer within {_ANSWER_S:g} s"
            raise WorkerNotFound(f"{problem}: ask again once it has loaded")
        return wire.decode_memory(answer)

    async def map(self, worker_id: str) -> WorkerMap:
        """Every block of a worker's memory and the job that has it. Raises WorkerNotFound, also for a worker of an
        earlier version, which does not know the question."""
        answer_id = MAP_QUESTION + secrets.token_hex(8)
        answer = await self._ask(self._keys.inbox(worker_id), answer_id.encode(), answer_id, _ANSWER_S)
        try:
            if answer is not None:
                return wire.decode_map(answer)
        except MalformedMessage:
            pass
        raise WorkerNotFound(f"worker {worker_id} has sent no map of its blocks: ask again once it has loaded")

    async def tokenize(self, request: JobRequest) -> TokenizerAnswer:
        """The prompt that a job would have. Raises InvalidRequest, WorkerNotFound."""
        return await self._ask_tokenizer(request.model, request=wire.encode_request(request))

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> TokenizerAnswer:
        """The text of token ids. Raises InvalidRequest, WorkerNotFound."""
        return await self._ask_tokenizer(model, token_ids=tuple(token_ids))

    async def _ask_tokenizer(self, model: str, **asked: Any) -> TokenizerAnswer:
        (model,) = await models_of(self._commands, self._keys, [model])
        for patience in _TOKENIZER_ANSWER_S:
            if all(worker.model != model for worker in await live_workers(self._commands, self._keys)):
                raise WorkerNotFound(f"no live worker of {model!r}: ask again once one has started")
            question = TokenizerQuestion(secrets.token_hex(8), **asked)
            data = wire.encode_question(question)
            if len(data) > wire.MAX_STRING_BYTES:
                raise InvalidRequest(
                    f"the text has {len(data)} bytes, the limit is {wire.MAX_STRING_BYTES}: shorten it"
                )
            async with self._asking:
                found = await self._ask(self._keys.questions(model), data, question.answer_id, patience)
            if found is None:
                continue
            is_large = len(found) > _LARGE_ANSWER  # the event loop may go on before and after it
            answer = await asyncio.to_thread(wire.decode_answer, found) if is_large else wire.decode_answer(found)
            if answer.error is not None:
                raise InvalidRequest(answer.error.message, code=answer.error.code, param=answer.error.param)
            return answer
        raise WorkerNotFound(f"no worker of {model!r} answered within {sum(_TOKENIZER_ANSWER_S):g} s: ask again")

    async def _ask(self, name: str, question: bytes, answer_id: str, patience_s: float) -> bytes | None:
        pipeline = self._commands.pipeline(transaction=False)
        pipeline.rpush(name, question)
        pipeline.ltrim(name, -QUESTIONS_KEPT, -1)
        pipeline.expire(name, _QUESTION_TTL_S)
        async with answered():
            await pipeline.execute()
            answer: Any = await self._listener.blpop([self._keys.answer(answer_id)], timeout=patience_s)
        return None if answer is None else answer[1]
