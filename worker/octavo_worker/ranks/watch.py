"""A look at the other ranks, by a thread: a process that waits for its GPU cannot look, and a GPU that waits for
another does not see whether that one's process is halted or has died."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from octavo_worker.contract.lifetime import state_of
from octavo_worker.ranks.memory import HUNG_SLICES, SLICE_MS, RankLost, RankMemory


class Watch:
    """Calls `lost`, once and in its own thread, for the first of the `others` that has died, or that has been halted
    for as long as the rest ran. Time is counted in looks, so ranks that were halted together do not blame each other.
    One that debuggers have stopped is left alone."""

    def __init__(self, memory: RankMemory, others: Sequence[int], lost: Callable[[RankLost], None]) -> None:
        self._memory, self._others, self._lost = memory, others, lost
        self._halted = dict.fromkeys(others, 0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-ranks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(SLICE_MS / 1e3):
            for rank in self._others:
                if (found := self._look(rank)) is not None:
                    self._lost(found)
                    return

    def _look(self, rank: int) -> RankLost | None:
        pid = self._memory.pid(rank)
        try:
            state = state_of(pid)
        except OSError:
            state = "X"
        self._halted[rank] = self._halted[rank] + 1 if state == "T" else 0
        if state in "ZX":
            return RankLost(rank, pid, "has died")
        return RankLost(rank, pid, "hangs") if self._halted[rank] >= HUNG_SLICES else None
