"""Webhooks survive kills of clerks and of the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from webhooks_under_kills import soak


@pytest.mark.full
async def test_no_event_is_lost_and_none_has_two_ids(tmp_path: Path) -> None:
    assert await soak(tmp_path, events=120, kill_every_s=3.0, kills=6, seed=7) == []
