"""How jobs ended lately, for a server that comes back without its last seconds: no reader sees an end retracted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from octavo.queue.calls import Call, run_many
from octavo.queue.protocol import Cell, FinishReply

_WRITTEN_S = 5.0  # by then the server has written an end down; see octavo.client.submissions
_PATIENCE_S = 60.0  # for a job that its submitter has yet to make again


@dataclass
class _End:
    call: Call[FinishReply]
    keep_until: float
    doubted: bool = False  # the server may have forgotten it


class Ends:
    """Ends that the server has acknowledged, kept for some seconds."""

    def __init__(self, connection: redis.asyncio.Redis, cell: Cell) -> None:
        self._connection = connection
        self._cell = cell
        self._kept: list[_End] = []
        self._server: str | None = None

    def keep(self, call: Call[FinishReply]) -> None:
        """It has just ended a job."""
        self._kept.append(_End(call, asyncio.get_running_loop().time() + _WRITTEN_S))

    async def answered_by(self, server: str) -> None:
        """`server` names the server's run. To another one than before everything is said again. Raises redis-py's
        errors."""
        now = asyncio.get_running_loop().time()
        if self._server not in (None, server):
            for end in self._kept:
                end.doubted, end.keep_until = True, now + _PATIENCE_S
        self._server = server
        if doubted := [end for end in self._kept if end.doubted]:
            known: list[Any] = await run_many(self._connection, [self._cell.end_again(end.call) for end in doubted])
            for end, is_known in zip(doubted, known, strict=True):
                end.doubted = is_known is not True
                if not end.doubted:
                    end.keep_until = now + _WRITTEN_S
        self._kept = [end for end in self._kept if end.keep_until > now]
