"""Every failure code of the engine is documented."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from octavo_worker.agent.failures import public_code
from octavo_worker.contract.messages import FailureCode

ERRORS = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", get_args(FailureCode))
def test_every_failure_of_the_engine_is_documented(code: FailureCode) -> None:
    assert f"`{public_code(code)}`" in ERRORS
