"""One running service for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_driver import Cli, Up, start_up


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = start_up(Cli(tmp_path_factory.mktemp("state")))
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture
def cli(up: Up) -> Cli:
    return up.cli
