"""Memory that both groups of blocks share, as planning sees it."""

from __future__ import annotations

from contextlib import ExitStack

from octavo_worker.contract.windows import Slabs
from octavo_worker.engine.kv.allocation import Allocation
from octavo_worker.engine.kv.room import Room
from octavo_worker.memory.slabs import SharedMemory


class SharedRoom(SharedMemory):
    """Amounts of memory go to the group that needs them, where the other one has them."""

    @classmethod
    def of(cls, slabs: Slabs) -> SharedRoom:
        return cls(slabs.number, slabs.kept, blocks_each=slabs.blocks, windows_each=slabs.windows)

    def provide(self, room: Room, needed: Room) -> Room:
        """The `room` that is counted on, once memory has moved to where it is `needed`."""
        blocks, windows = self.even_out(room.blocks - needed.blocks, room.windows - needed.windows)
        return Room(blocks + needed.blocks, room.slots, windows + needed.windows)

    def provide_for(self, allocation: Allocation, room: Room) -> Room:
        """The same for an allocation. Nothing of what it found is evicted."""
        with ExitStack() as stack:
            for supply in allocation.supplies:
                stack.enter_context(supply.held())
            return self.provide(room, allocation.needed)
