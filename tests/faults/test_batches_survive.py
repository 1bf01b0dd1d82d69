"""Five hundred lines through sixteen kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from batches_under_kills import soak


@pytest.mark.full
@pytest.mark.timeout(1800)
async def test_no_line_is_lost_or_generated_twice_through_kills_of_everything(tmp_path: Path) -> None:
    assert await soak(tmp_path, lines=500, kills=16, seconds=32.0, seed=49) == []
