"""Paused lanes: claims take nothing of them but what comes back. Jobs wait there, and streams that run go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import redis.asyncio

from octavo.queue.calls import Call, Watch
from octavo.queue.connection import answered
from octavo.queue.keys import Keys
from octavo.terms.errors import UnknownModel
from octavo.terms.fields import Priority
from octavo.terms.fleet import PausedLane

CLASSES: tuple[Priority, ...] = get_args(Priority)
_LANE = re.compile(r"(high|normal|batch) (.+)")
_PAUSE = re.compile(rb"\d{1,15} (\d{1,15})")


@dataclass(frozen=True)
class LaneCell:
    """All calls about lanes on one cell."""

    keys: Keys = field(default_factory=Keys)
    watch: Watch | None = None

    def pause(self, model: str, classes: Sequence[Priority] = CLASSES) -> Call[int]:
        """Pause lanes of a model. How many were not paused before. The reply raises UnknownModel."""
        return self._change(model, classes, is_pause=True)

    def resume(self, model: str, classes: Sequence[Priority] = CLASSES) -> Call[int]:
        """Let lanes of a model go on. How many were paused before. The reply raises UnknownModel."""
        return self._change(model, classes, is_pause=False)

    def _change(self, model: str, classes: Sequence[Priority], *, is_pause: bool) -> Call[int]:
        args = (model, " ".join(classes), int(is_pause))
        return Call("pause", (self.keys.prefix,), args, lambda reply: _changed(reply, model), watch=self.watch)

    def purge(self, entries: Sequence[tuple[str, str]]) -> Call[int]:
        """Take (entry, job id) pairs off the list of dead letters, and drop the jobs' requests. How many there were."""
        flat = [word for pair in entries for word in pair]
        return Call("dead_purge", (self.keys.prefix,), tuple(flat), int, watch=self.watch)


def _changed(reply: list[Any], model: str) -> int:
    if not reply[0]:
        raise UnknownModel(f"no worker has ever served a model {model!r}", param="model")
    return int(reply[1])


async def paused_lanes(connection: redis.asyncio.Redis, keys: Keys) -> list[PausedLane]:
    """The lanes that are paused now, by model. Raises redis-py's errors."""
    async with answered():
        found: Any = await connection.hgetall(keys.pauses)
    return parse_pauses(found)


def parse_pauses(found: Any) -> list[PausedLane]:
    """Lanes of the hash that are paused. What something else wrote there is left out."""
    lanes = []
    for name, text in found.items() if isinstance(found, dict) else ():
        lane, pause = _LANE.fullmatch(name.decode(errors="replace")), _PAUSE.fullmatch(text)
        if lane is not None and pause is not None and int(pause[1]):
            lanes.append(PausedLane(model=lane[2], priority=lane[1], since=int(pause[1]) / 1000))
    return sorted(lanes, key=lambda one: (one.model, CLASSES.index(one.priority)))
