"""Timers of requests: those that are due are found without a look at all requests in every step."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from octavo_worker.engine.sequence import Request


class Timers:
    """A heap of (time, arrival, request id) beside the scheduler's table of living requests.

    Entries of ended requests are dropped when their time comes, or in bulk once they outnumber the living.
    """

    def __init__(self, living: Mapping[str, Request]) -> None:
        self._living = living
        self._heap: list[tuple[float, int, str]] = []

    def add(self, request: Request, due: float) -> None:
        heapq.heappush(self._heap, (due, request.arrival, request.id))
        if len(self._heap) > 2 * len(self._living) + 64:
            self._heap = [entry for entry in self._heap if self._find(entry) is not None]
            heapq.heapify(self._heap)

    def take_due(self, now: float) -> list[Request]:
        """Living requests whose time is not after `now`; each entry is returned once."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            request = self._find(heapq.heappop(self._heap))
            if request is not None:
                due.append(request)
        return due

    def _find(self, entry: tuple[float, int, str]) -> Request | None:
        _, arrival, request_id = entry
        request = self._living.get(request_id)
        return request if request is not None and request.arrival == arrival else None
