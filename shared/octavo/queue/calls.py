"""Calls of scripts as data, and how they are sent.

A `Call` says which script, which arguments, and how to read the reply. Synchronous and asynchronous code share all of
it: `await run(redis, call)` or `run_sync(redis, call)`. Several go out in one round trip with `run_many`, together with
a `Query`, a command that only reads. Every call is told to the watch of its cell as a `Transition`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import monotonic
from typing import Any, Generic, Literal, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError, ResponseError

from octavo.queue.connection import LOST, Line, answered, is_final
from octavo.queue.scripts import script
from octavo.terms.errors import OctavoError

T = TypeVar("T")

Outcome = Literal["ok", "refused", "failed", "lost"]


@dataclass(frozen=True)
class Transition:
    """A call of a script that is over, as data for metrics, quotas and traces.

    `seconds` are those of the round trip, which calls sent together share. `outcome`: ok; refused, when the script ran
    and said no (a full queue, an idempotency key with another request); failed, when the server gave an error; lost,
    when no answer came, so that the call may have run or not. `tenant` is empty for calls that name none.
    """

    script: str
    seconds: float
    outcome: Outcome
    tenant: str = ""


Watch = Callable[[Transition], None]
"""Is told of every call, in the thread that made it; may not raise."""


@dataclass(frozen=True)
class Call(Generic[T]):
    script: str  # file name in lua/, without suffix
    keys: tuple[str, ...]
    args: tuple[bytes | str | int | float, ...]
    parse: Callable[[Any], T]
    tenant: str = ""
    watch: Watch | None = None

    @property
    def command(self) -> Sequence[Any]:
        return ("EVALSHA", script(self.script).sha, len(self.keys), *self.keys, *self.args)


@dataclass(frozen=True)
class Query(Generic[T]):
    command: Sequence[Any]
    parse: Callable[[Any], T]


Command = Call[T] | Query[T]


async def run(connection: redis.asyncio.Redis | Line, call: Call[T]) -> T:
    """Run one call. Raises what its `parse` raises, and redis-py's errors as they are."""
    (outcome,) = await run_many(connection, [call])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_sync(connection: redis.Redis, call: Call[T]) -> T:
    """`run` for synchronous connections."""
    began = monotonic()
    outcome: T | Exception
    try:
        outcome = call.parse(_mended_sync(connection, call))
    except Exception as error:
        outcome = error
    _tell([call], began, [outcome])
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _mended_sync(connection: redis.Redis, call: Call[Any]) -> Any:
    try:
        return _run_sync(connection, call)
    except ResponseError as error:
        if not _is_damage(error):
            raise
        _run_sync(connection, _mending(call))
        return _run_sync(connection, call)


def _run_sync(connection: redis.Redis, call: Call[Any]) -> Any:
    try:
        return connection.evalsha(script(call.script).sha, len(call.keys), *call.keys, *call.args)
    except NoScriptError:
        return connection.eval(script(call.script).source, len(call.keys), *call.keys, *call.args)


async def run_many(connection: redis.asyncio.Redis | Line, calls: Sequence[Command[T]]) -> list[T | Exception]:
    """Run calls in one round trip, in order. A call that fails gives its exception in place of its result and
    spoils no other; a lost connection raises. What fails on damaged keys is tried again once they are mended."""
    began = monotonic()
    try:
        async with answered():
            outcomes = _outcomes(calls, await _mended(connection, calls))
    except Exception as error:
        _tell(calls, began, repeat(error))
        raise
    _tell(calls, began, outcomes)
    return outcomes


async def _mended(connection: redis.asyncio.Redis | Line, calls: Sequence[Command[Any]]) -> list[Any]:
    """The replies, after what failed on damaged keys was tried again."""
    replies = await _known(connection, calls)
    if failed := {i: call for i, call in enumerate(calls) if isinstance(call, Call) and _is_damage(replies[i])}:
        _, *mended = await _known(connection, [_mending(*failed.values()), *failed.values()])
        for i, reply in zip(failed, mended, strict=True):
            replies[i] = reply
    return replies


async def _known(connection: redis.asyncio.Redis | Line, calls: Sequence[Command[Any]]) -> list[Any]:
    """The replies of a server that knows the scripts."""
    replies = await _exchange(connection, _commands(calls))
    if any(isinstance(reply, NoScriptError) for reply in replies):
        await _exchange(connection, _loads(calls))
        replies = await _exchange(connection, _commands(calls))
    return replies


def _tell(calls: Sequence[Command[Any]], began: float, outcomes: Iterable[Any]) -> None:
    seconds = monotonic() - began
    for call, outcome in zip(calls, outcomes, strict=False):
        if isinstance(call, Call) and call.watch is not None:
            call.watch(Transition(call.script, seconds, _word(outcome), call.tenant))


def _word(outcome: Any) -> Outcome:
    if isinstance(outcome, OctavoError):
        return "refused"
    if isinstance(outcome, LOST):
        return "lost"
    return "failed" if isinstance(outcome, Exception) else "ok"


def _is_damage(reply: Any) -> bool:
    """True if a script failed on what it found, or found that something is missing."""
    return isinstance(reply, ResponseError) and (is_final(reply) or str(reply).startswith("DAMAGED"))


def _mending(call: Call[Any], *_: Call[Any]) -> Call[Any]:
    """Finds out what something else has written over, and makes it anew from the jobs."""
    return Call("mend", call.keys, (), bool)


async def _exchange(connection: redis.asyncio.Redis | Line, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if isinstance(connection, Line):
        return await connection.exchange(commands)
    return await _pipeline(connection, commands).execute(raise_on_error=False)  # type: ignore[no-any-return]


def _pipeline(connection: Any, commands: Sequence[Sequence[Any]]) -> Any:
    pipeline = connection.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return pipeline


def _commands(calls: Sequence[Command[Any]]) -> list[Sequence[Any]]:
    return [call.command for call in calls]


def _loads(calls: Sequence[Command[Any]]) -> list[Sequence[Any]]:
    return [
        ("SCRIPT", "LOAD", script(name).source) for name in {call.script for call in calls if isinstance(call, Call)}
    ]


def _outcomes(calls: Sequence[Command[T]], replies: Sequence[Any]) -> list[T | Exception]:
    outcomes: list[T | Exception] = []
    for call, reply in zip(calls, replies, strict=True):
        try:
            outcomes.append(reply if isinstance(reply, RedisError) else call.parse(reply))
        except Exception as error:  # what a single `run` would raise
            outcomes.append(error)
    return outcomes


async def run_all(connection: redis.asyncio.Redis | Line, calls: Sequence[Command[Any]]) -> list[Any]:
    """`run_many`, raising the first exception among the outcomes."""
    outcomes = await run_many(connection, calls)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes
