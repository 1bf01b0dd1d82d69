"""Prefixes that this worker keeps resident: what is asked for in the server, what has become of it here."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from octavo.client.pins import version_of
from octavo.queue import wire
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.terms.errors import MalformedMessage
from octavo.terms.workers import PinOutcome, PrefixPin
from octavo_worker.agent.child import EngineProcess
from octavo_worker.agent.prompts.tokens import PromptRejected, Prompts
from octavo_worker.contract.messages import Abort, PinPrefix, Ready, StepOutput, UnpinPrefix

log = logging.getLogger(__name__)

_REQUEST = "pin:"  # how the engine names what it computes for a pin


@dataclass(frozen=True)
class _Lent:
    """The engine that does the work, and what it said of itself."""

    process: EngineProcess
    limits: Ready


class Pins:
    """Makes the engine's pins those of the server. `outcomes` may be read from any thread."""

    def __init__(self, connection: redis.asyncio.Redis, keys: Keys, prompts: Prompts, model: str) -> None:
        self._connection = connection
        self._name = keys.pins(model)
        self._prompts = prompts
        self._outcomes: dict[str, PinOutcome] = {}
        self._engine: _Lent | None = None
        self._syncing = asyncio.Lock()

    def attach(self, process: EngineProcess, limits: Ready) -> None:
        """A new engine, which pins nothing yet."""
        self._engine = _Lent(process, limits)
        self._outcomes.clear()

    def detach(self) -> None:
        self._engine = None
        self._outcomes.clear()

    def outcomes(self) -> dict[str, PinOutcome]:
        """By the name that a pin has in the server."""
        return dict(self._outcomes)

    async def sync(self) -> None:
        """Pin what is new or has changed, unpin what is gone. Raises redis-py's errors."""
        async with self._syncing:
            if self._engine is None:
                return
            async with answered():
                found: Any = await self._connection.hgetall(self._name)
            stored = {name.decode(errors="replace"): data for name, data in found.items()}
            wanted = _readable(stored)
            gone = self._outcomes.keys() - stored.keys()
            replaced = [name for name, (_, version) in wanted.items() if self._version(name) not in (None, version)]
            for name in gone:
                self._unpin(name)
            if gone or replaced:  # what found no room may find some
                self._outcomes = {name: made for name, made in self._outcomes.items() if made.state != "refused"}
            for name in (*replaced, *wanted):  # replaced pins first: they may give room back
                pin, version = wanted[name]
                if self._version(name) != version:
                    await self._pin(name, pin, version)

    def _version(self, name: str) -> str | None:
        return self._outcomes[name].version if name in self._outcomes else None

    async def _pin(self, name: str, pin: PrefixPin, version: str) -> None:
        engine = self._engine
        try:
            tokens = await asyncio.to_thread(self._prompts.encode_prefix, pin)
        except PromptRejected as error:
            self._refuse(name, PinOutcome(state="refused", version=version, message=str(error)))
            return
        if engine is None or engine is not self._engine:
            return  # the next engine gets all of them anew
        kept = len(tokens) - len(tokens) % engine.limits.block_size
        if not kept:
            message = f"{len(tokens)} tokens are less than one block of {engine.limits.block_size}: nothing can be kept"
            self._refuse(name, PinOutcome(state="refused", version=version, tokens=len(tokens), message=message))
            return
        self._outcomes[name] = PinOutcome(state="pinning", version=version, tokens=kept)
        engine.process.send(PinPrefix(name, tokens[:kept], salt_of(pin)))

    def on_step(self, output: StepOutput) -> None:
        """Take the engine's news of pins."""
        for started in output.started:
            if (name := _pin_of(started.id)) in self._outcomes:
                pinned = self._outcomes[name].model_copy(update={"state": "pinned"})
                self._outcomes[name] = pinned
                log.info("prefix %s pinned, %d tokens", name, pinned.tokens)
        for failed in output.failed:
            if (name := _pin_of(failed.id)) in self._outcomes:
                refused = {"state": "refused", "message": failed.message}
                self._refuse(name, self._outcomes[name].model_copy(update=refused))

    def _refuse(self, name: str, outcome: PinOutcome) -> None:
        self._unpin(name)
        self._outcomes[name] = outcome
        log.warning("prefix %s is not pinned: %s", name, outcome.message)

    def _unpin(self, name: str) -> None:
        if self._outcomes.pop(name, None) is not None and self._engine is not None:
            self._engine.process.send(Abort(_REQUEST + name))
            self._engine.process.send(UnpinPrefix(name))


def salt_of(pin: PrefixPin) -> bytes:
    """The salt of the jobs that are to find it."""
    return pin.tenant.encode()


def _readable(stored: dict[str, bytes]) -> dict[str, tuple[PrefixPin, str]]:
    """With their versions."""
    pins = {}
    for name, data in stored.items():
        try:
            pin = wire.decode_pin(data)
            pins[name] = pin, version_of(pin)
        except MalformedMessage as error:
            log.warning("prefix %s cannot be read: %s", name, error)
    return pins


def _pin_of(request_id: str) -> str:
    return request_id.removeprefix(_REQUEST) if request_id.startswith(_REQUEST) else ""
