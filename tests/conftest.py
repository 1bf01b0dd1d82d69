"""A real server for every test process, an empty database for every test."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, settings

from octavo.service.server import EmbeddedServer

# Threads of torch that wait for each other by spinning take the cores from those they wait for, where several processes
# share them: a step of milliseconds takes seconds. Read when torch is loaded, here and in processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# How long an example takes says what else the machine does.
settings.register_profile("octavo", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("octavo")


def pytest_configure() -> None:
    """Every engine that a test starts, through whatever process, verifies its accounts whenever it falls idle. Ctrl-C
    reaches them also if the tests themselves were started in the background, where shells ignore it."""
    os.environ["OCTAVO_CHECK_INTEGRITY"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what needs a GPU where there is none or the kernels were built for another, or not for all that a test
    needs, what needs the CUDA compiler unless it is asked for, and what needs a program that is not there."""
    conditions = {
        "gpu": _has_gpu,
        "plain": lambda: _has_gpu() and not _is_whole(),
        "beyond_plain": lambda: _has_gpu() and _is_whole(),
        "nvcc": lambda: "nvcc" in config.option.markexpr,
        "hip": lambda: _has_program("hipcc"),
        "node": lambda: _has_program("node"),
        "go": lambda: _has_program("go"),
        "rabbitmq": lambda: _has_program("rabbitmq-server"),
        "npm": lambda: (Path(__file__).parent / "support" / "node" / "node_modules").exists(),
    }
    for marker, is_there in conditions.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not is_there():
            config.hook.pytest_deselected(items=needing)
            items[:] = [item for item in items if not item.get_closest_marker(marker)]


def _has_program(name: str) -> bool:
    return shutil.which(name) is not None


def _has_gpu() -> bool:
    import torch  # takes seconds, and most tests do without

    from octavo_kernels import cuda

    return torch.cuda.is_available() and cuda.available()


def _is_whole() -> bool:
    from octavo_kernels import cuda

    return cuda.has_tensor_cores()


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One embedded server a test process (so one a pytest-xdist worker). Do not kill it: start your own for that."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    """The address of the server, with nothing in it."""
    with redis.Redis.from_url(server.url) as connection:
        connection.flushall()
    return server.url


@pytest.fixture
def redis_sync(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connection:
        yield connection


@pytest.fixture
async def redis_async(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    # A socket timeout can swallow the cancellation of what waits here: see octavo.queue.connection.
    async with redis.asyncio.Redis.from_url(redis_url, socket_timeout=None) as connection:
        yield connection
