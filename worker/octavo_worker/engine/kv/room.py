"""Amounts of each kind of memory."""

from __future__ import annotations

from operator import ge
from typing import NamedTuple


class Room(NamedTuple):
    """Blocks of the first group, slots of states, and blocks of the second group: what sequences may take, or need."""

    blocks: int = 0
    slots: int = 0
    windows: int = 0

    def plus(self, other: Room) -> Room:
        return Room(self.blocks + other.blocks, self.slots + other.slots, self.windows + other.windows)

    def minus(self, other: Room) -> Room:
        return Room(self.blocks - other.blocks, self.slots - other.slots, self.windows - other.windows)

    def covers(self, needed: Room) -> bool:
        """True if there is as much of everything."""
        return all(map(ge, self, needed))
