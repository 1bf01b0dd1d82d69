"""A task that is cancelled ends."""

from __future__ import annotations

from sources import ROOT, sources


def test_nothing_waits_in_a_way_that_swallows_cancellations() -> None:
    """On Python 3.11 `asyncio.wait_for` returns where its awaitable ends in the moment of the cancellation
    (python/cpython#86296): `asyncio.timeout` does not."""
    places = [
        str(path.relative_to(ROOT))
        for folder in ("shared/octavo", "gateway/octavo_gateway", "worker/octavo_worker")
        for path in sources(folder)
        if "asyncio.wait_for(" in path.read_text()
    ]
    assert places == []
