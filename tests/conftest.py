"""A real server for every test process, an empty database for every test."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from browser import browser
from gpus import has_gpu, is_whole
from guardian import Guardian
from tiers import TIERS, beyond_quick, load_profile, tier_of

from octavo.service.server import EmbeddedServer

# Threads of torch that wait for each other by spinning take the cores from those they wait for, where several processes
# share them: a step of milliseconds takes seconds. Read when torch is loaded, here and in processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where there is no GPU, what needs one is not even collected.
GPU_MODULES = ["kernels/test_cuda_[!b]*.py", "kernels/test_plain.py", "oracles/test_cuda*.py"]
collect_ignore_glob = [] if has_gpu() else GPU_MODULES


GUARDIAN = pytest.StashKey[Guardian]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        help="full runs what is marked `full` too, long also more examples; without it quick, or full for a named test",
    )
    parser.addini("guardian_grace", "seconds beyond a test's limit after which its process is ended", default="60")


def pytest_configure(config: pytest.Config) -> None:
    """Every engine that a test starts, through whatever process, verifies its accounts whenever it falls idle. Ctrl-C
    reaches them also if the tests themselves were started in the background, where shells ignore it."""
    load_profile(tier_of(config))
    config.stash[GUARDIAN] = Guardian(grace_s=float(config.getini("guardian_grace")))
    os.environ["OCTAVO_CHECK_INTEGRITY"] = "1"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what is of the full tier where the quick one runs, what needs a GPU where there is none or the kernels
    were built for another, or not for all that a test needs, what needs the CUDA compiler unless it is asked for, and
    what needs a program that is not there."""
    conditions = {
        "gpu": has_gpu,
        "plain": lambda: has_gpu() and not is_whole(),
        "beyond_plain": lambda: has_gpu() and is_whole(),
        "nvcc": lambda: "nvcc" in config.option.markexpr,
        "hip": lambda: _has_program("hipcc"),
        "node": lambda: _has_program("node"),
        "go": lambda: _has_program("go"),
        "rabbitmq": lambda: _has_program("rabbitmq-server"),
        "promtool": lambda: _has_program("promtool"),
        "browser": lambda: browser() is not None,
        "npm": _has_packages,
    }
    for marker, is_there in conditions.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and not is_there():
            deselect(config, items, set(needing))
    if tier_of(config) == "quick":
        deselect(config, items, beyond_quick(items))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    guardian = item.config.stash[GUARDIAN]
    guardian.expect(limit_of(item), item.nodeid)
    try:
        return (yield)
    finally:
        guardian.expect(0)


def pytest_enter_pdb(config: pytest.Config) -> None:
    config.stash[GUARDIAN].expect(0)


def pytest_unconfigure(config: pytest.Config) -> None:
    """A thread that never ends would keep this process."""
    config.stash[GUARDIAN].expect(float(config.getini("timeout")))


def limit_of(item: pytest.Item) -> float:
    """Seconds that pytest-timeout gives a test, 0 for any number."""
    if (mark := item.get_closest_marker("timeout")) is not None:
        return float(mark.args[0])
    given = item.config.getoption("timeout")
    return float(item.config.getini("timeout") if given is None else given)


def deselect(config: pytest.Config, items: list[pytest.Item], chosen: set[pytest.Item]) -> None:
    if chosen:
        config.hook.pytest_deselected(items=list(chosen))
        items[:] = [item for item in items if item not in chosen]


def _has_packages() -> bool:
    """True if the packages of Node are those that are pinned: a folder of an earlier checkout may lack some."""
    folder = Path(__file__).parent / "support" / "node"
    pinned = json.loads((folder / "package.json").read_text())["dependencies"]
    packages = {name: folder / "node_modules" / name / "package.json" for name in pinned}
    return all(
        path.exists() and json.loads(path.read_text())["version"] == pinned[name] for name, path in packages.items()
    )


def _has_program(name: str) -> bool:
    return shutil.which(name) is not None


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
