"""Five hundred jobs of twenty tenants through kills: the account, the buckets and the caps."""

from __future__ import annotations

from pathlib import Path

import pytest
from accounts_under_kills import soak


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_the_account_is_exact_whatever_is_killed(tmp_path: Path) -> None:
    assert await soak(tmp_path, jobs=500, kills=8, seed=51) == []
