"""A thread notices ranks that have died or are halted, and leaves the others alone."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from waiting import STALL_S

from octavo_worker.ranks.memory import HUNG_SLICES, SLICE_MS, RankLost, RankMemory
from octavo_worker.ranks.rank import Rank
from octavo_worker.ranks.watch import Watch

ANOTHER = """
import sys, time
from octavo_worker.ranks.memory import RankMemory
from octavo_worker.model.shards import Rank
memory = RankMemory(int(sys.argv[1]), Rank(1, 2), 0)
print("there", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def watched() -> Iterator[tuple[subprocess.Popen[str], queue.Queue[RankLost]]]:
    """A rank that has nothing to do, and what its watch finds."""
    descriptor, found = os.memfd_create("ranks"), queue.Queue[RankLost]()
    memory = RankMemory(descriptor, Rank(0, 2), 0)
    command = [sys.executable, "-c", ANOTHER, str(descriptor)]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        watch = Watch(memory, [1], found.put)
        yield other, found
        watch.close()
        other.kill()
    os.close(descriptor)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("number", "what"), [(signal.SIGKILL, "has died"), (signal.SIGSTOP, "hangs")])
def test_a_loss_is_noticed_once(
    number: signal.Signals, what: str, watched: tuple[subprocess.Popen[str], queue.Queue[RankLost]]
) -> None:
    other, found = watched
    other.send_signal(number)
    lost = found.get(timeout=STALL_S)
    assert lost.rank == 1
    assert str(lost) == f"rank 1 (process {other.pid}) {what}"
    time.sleep(4 * SLICE_MS / 1e3)
    assert found.empty()


def test_a_rank_that_waits_for_work_is_no_loss(
    watched: tuple[subprocess.Popen[str], queue.Queue[RankLost]],
) -> None:
    _, found = watched
    time.sleep(2 * HUNG_SLICES * SLICE_MS / 1e3)
    assert found.empty()
