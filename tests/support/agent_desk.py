"""The agent without an engine or a supervisor: jobs come from the real server, the test says what the engine says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec
import redis
import waiting
from queue_client import MODEL, Queue, known_queue

from octavo.queue.calls import run_sync
from octavo.queue.connection import connect
from octavo.queue.protocol import Claims, HeartbeatReply
from octavo_worker.agent.agent import Agent
from octavo_worker.agent.heartbeat import Holding
from octavo_worker.agent.prompts.answer_form import EncodedPrompt
from octavo_worker.contract.messages import AddRequest, EngineStats, Ready, StepOutput, TokenOutput

PROMPT = (7, 8, 9)


class RecordingEngine:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send(self, message: Any) -> None:
        self.told.append(message)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]


class PlainPrompts:
    """Prompts are token ids; `tokenizer` makes text of what is generated."""

    end_ids = ()

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer

    def encode(self, request: Any, *, at: datetime) -> EncodedPrompt:
        return EncodedPrompt(list(request.prompt), grammar=request.grammar)

    def token_bytes(self, token: int) -> bytes:
        return b""


def ready(**changes: Any) -> Ready:
    kinds: dict[Any, Any] = {int: 1024, float: 1.0, str: "x"}
    made = Ready(**{f.name: kinds.get(f.type, 0) for f in msgspec.structs.fields(Ready) if f.default is not None})
    return msgspec.structs.replace(made, **changes)


class Desk:
    """One worker's agent, its engine and its queue."""

    def __init__(self, agent: Agent, queue: Queue) -> None:
        self.agent, self.queue = agent, queue
        self.engine: Any = RecordingEngine()

    def claim(self, *, count: int = 1, idle: bool = True) -> Claims:
        call = self.queue.cell.claim(MODEL, "w", max_jobs=count, max_tokens=9999, lease_ms=60_000, idle=idle)
        return run_sync(self.queue.connection, call)

    async def start(self, max_tokens: int = 50, **sampling: Any) -> tuple[str, AddRequest]:
        """A job that has reached the engine."""
        job_id = self.queue.submit(PROMPT, sampling={"max_tokens": max_tokens, "ignore_eos": True, **sampling})
        before = len(self.engine.of(AddRequest))
        self.agent.take(self.claim())
        await waiting.until(lambda: len(self.engine.of(AddRequest)) > before)
        return job_id, self.engine.of(AddRequest)[-1]

    def generate(self, request: AddRequest, *tokens: int, index: int = 0, reason: str | None = None) -> None:
        """The engine's next tokens, a step each; `reason` ends the last."""
        for place, token in enumerate(tokens):
            ends = reason if place == len(tokens) - 1 else None
            output = TokenOutput(request.id, index, token, finish_reason=ends)
            self.agent.on_step(StepOutput([output], [], [], EngineStats()))

    def beat(self) -> None:
        held = self.agent.holding()
        self.agent.on_heartbeat(held, self.ask(held))

    def ask(self, held: Holding) -> HeartbeatReply:
        return run_sync(self.queue.connection, self.queue.cell.heartbeat("w", held, lease_ms=60_000, info=b""))

    async def ended(self) -> None:
        async with asyncio.timeout(waiting.STALL_S):
            await self.agent.ended()


@asynccontextmanager
async def agent_desk(
    url: str, *, tokenizer: Any = None, prompts: Any = None, attached: bool = True
) -> AsyncIterator[Desk]:
    """A desk whose publisher runs. By default prompts are token ids."""
    with redis.Redis.from_url(url) as connection:
        queue = known_queue(connection)
        async with connect(url) as pool:
            desk = Desk(Agent(pool, queue.cell, prompts or PlainPrompts(tokenizer), changed=lambda: None), queue)
            publishing = asyncio.create_task(desk.agent.publisher.run())
            if attached:
                desk.agent.attach(desk.engine, ready())
            try:
                yield desk
            finally:
                publishing.cancel()
