"""Ranks that share memory: sums and gathers of any size, messages of any length, and ranks that do not come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rank_threads import on_ranks, ranks_of

from octavo_worker.ranks.board import Board
from octavo_worker.ranks.cpu_group import CpuGroup
from octavo_worker.ranks.memory import BOARD_BYTES, RankLost, RankMemory
from octavo_worker.ranks.processes import RanksFailed, reserve
from octavo_worker.ranks.rank import Rank


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_have_the_same_bits_on_every_rank_at_every_turn(ranks: int) -> None:
    generator = torch.Generator().manual_seed(1)
    rounds = [torch.randn(ranks, rows, 24, generator=generator) for rows in (1, 7, 3, 42, 2) * 20]

    def work(group: CpuGroup) -> list[torch.Tensor]:
        found = []
        for parts in rounds:
            mine, out = parts[group.rank.index], torch.ones(parts.shape[1:])
            done = 0
            while done < len(mine):
                addend = group.addend(len(mine) - done, 24, torch.float32)
                some = slice(done, done + len(addend))
                addend.copy_(mine[some])
                group.add(addend, out[some], out[some])
                done += len(addend)
            found.append(out)
        return found

    expected = []
    for parts in rounds:
        total = torch.zeros(parts.shape[1:])
        for part in parts:
            total = total + part
        expected.append(total + 1)
    for found in on_ranks(ranks, work, slot_bytes=42 * 24 * 4 // 3):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("shape", [(1,), (5, 3), (0, 3), (700, 2)])
def test_every_rank_gathers_what_each_has(shape: tuple[int, ...]) -> None:
    parts = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    for found in on_ranks(3, lambda group: group.gather(parts[group.rank.index]), slot_bytes=1000):
        assert torch.equal(found, torch.stack(parts))


def test_messages_of_any_length_arrive_in_order() -> None:
    sent = [b"", b"x", os.urandom(3 * BOARD_BYTES + 7), b"y" * BOARD_BYTES, *(bytes([i]) * i for i in range(100))]

    def work(group: CpuGroup) -> list[bytes]:
        board = Board(group.memory, group.rank)
        if group.rank.index > 0:
            return [board.read() for _ in sent]
        for message in sent:
            board.publish(message)
        return sent

    assert on_ranks(3, work) == [sent] * 3


ANOTHER = """
import os, sys, time
from octavo_worker.ranks.cpu_group import CpuGroup
from octavo_worker.ranks.memory import RankMemory
from octavo_worker.model.shards import Rank
import torch
group = CpuGroup(RankMemory(int(sys.argv[1]), Rank(1, 2), 4096), Rank(1, 2))
print("there", flush=True)
group.gather(torch.zeros(1))
time.sleep(3600)
"""


@pytest.fixture
def pair() -> Iterator[tuple[CpuGroup, subprocess.Popen[str]]]:
    """A group of two that has met once, and the other rank, which comes no more."""
    descriptor = os.memfd_create("ranks")
    group = CpuGroup(RankMemory(descriptor, Rank(0, 2), 4096), Rank(0, 2))
    command = [sys.executable, "-c", ANOTHER, str(descriptor)]
    with subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        group.gather(torch.zeros(1))
        yield group, other
        other.kill()
    os.close(descriptor)


def test_a_rank_that_sleeps_while_others_wait_is_lost(pair: tuple[CpuGroup, subprocess.Popen[str]]) -> None:
    group, other = pair
    with pytest.raises(RankLost, match=rf"rank 1 \(process {other.pid}\) hangs"):
        group.gather(torch.zeros(1))


@pytest.mark.full
def test_a_rank_that_was_stopped_is_lost(pair: tuple[CpuGroup, subprocess.Popen[str]]) -> None:
    group, other = pair
    other.send_signal(signal.SIGSTOP)
    with pytest.raises(RankLost, match="hangs"):
        group.gather(torch.zeros(1))


def test_a_rank_that_was_killed_is_lost(pair: tuple[CpuGroup, subprocess.Popen[str]]) -> None:
    group, other = pair
    other.kill()
    with pytest.raises(RankLost, match="has died"):
        group.gather(torch.zeros(1))


def test_memory_that_the_system_has_not_is_named(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "full", os.O_RDWR | os.O_CREAT)
    with pytest.raises(RanksFailed, match=r"the ranks need \d+ MiB of shared memory.*raise the memory limit"):
        reserve(descriptor, 1 << 62)
    os.close(descriptor)


def test_shares() -> None:
    assert [rank.share(6) for rank in ranks_of(3)] == [range(2), range(2, 4), range(4, 6)]
