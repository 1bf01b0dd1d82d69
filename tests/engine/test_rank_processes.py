"""The ranks of a model as children of the engine: none survives another, and every refusal is a sentence."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from waiting import STALL_S, eventually

from octavo_worker.contract.channel import _TO_AGENT, _frame_length
from octavo_worker.contract.messages import Ready, Refused, ToAgent
from octavo_worker.contract.options import ModelOptions
from octavo_worker.ranks.processes import Ranks, RanksFailed


@contextmanager
def engine(**options: object) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The real engine on the bundled model, and the agent's end of its socket."""
    ours, theirs = socket.socketpair()
    fixed = {"model": "demo", "device": "cpu", "num_blocks": 33, "threads": 1, "tensor_parallel": 2}
    settings = ModelOptions(**fixed | options).to_json()  # type: ignore[arg-type]
    command = [
        sys.executable,
        "-m",
        "octavo_worker.assembly.engine_process",
        "--fd",
        str(theirs.fileno()),
        "--options",
        settings,
    ]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
        theirs.close()
        yield process, ours
        ours.close()
        process.kill()


def answer(sock: socket.socket) -> ToAgent:
    """Its first message. Raises `EOFError` if it dies first."""
    sock.settimeout(STALL_S)
    frame = b""
    while len(frame) < 4 or len(frame) < 4 + _frame_length(frame):
        received = sock.recv(1 << 16)
        if not received:
            raise EOFError
        frame += received
    return _TO_AGENT.decode(frame[4:])


def rank_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    children = eventually(lambda: psutil.Process(process.pid).children())
    return psutil.Process(children[0].pid)


def test_a_rank_that_is_killed_while_it_loads_ends_the_engine_alike() -> None:
    with engine() as (process, sock):
        rank_of(process).kill()
        with pytest.raises(EOFError):
            answer(sock)
        assert process.wait(STALL_S) == -signal.SIGKILL
        assert process.stderr is not None
        assert b"rank 1 was killed by SIGKILL: the engine ends, too" in process.stderr.read()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_idle_engine_ends_with_its_rank(number: signal.Signals) -> None:
    """SIGTERM is left to the agent: a rank ignores it, as the engine does."""
    with engine() as (process, sock):
        ready = answer(sock)
        assert isinstance(ready, Ready)
        assert ready.numerics.endswith(" tp2")
        rank = rank_of(process)
        rank.send_signal(signal.SIGTERM)
        if number is signal.SIGTERM:
            sock.close()  # as the agent does when it leaves
        else:
            rank.kill()
        assert process.wait(STALL_S) == (-signal.SIGKILL if number is signal.SIGKILL else 0)
        eventually(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.full
def test_a_rank_ends_with_the_engine() -> None:
    with engine() as (process, sock):
        assert isinstance(answer(sock), Ready)
        rank = rank_of(process)
        process.kill()
        process.wait(STALL_S)
        eventually(lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.full
def test_a_model_that_cannot_be_shared_out_is_refused_in_one_sentence() -> None:
    with engine(tensor_parallel=3) as (process, sock):
        refused = answer(sock)
        assert isinstance(refused, Refused)
        assert not refused.is_fault
        assert refused.reason == (
            "4 attention heads and 2 heads of keys and values and 512 columns of the MLP cannot be shared out among 3 "
            "ranks; give another --tensor-parallel."
        )
        assert process.wait(STALL_S) == 1
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_system_without_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(RanksFailed, match=r"gives no memory that processes share .*leave --tensor-parallel"):
        Ranks.start(ModelOptions(model="demo", tensor_parallel=2))


def test_a_rank_that_goes_while_rank_0_loads_is_named() -> None:
    ranks = Ranks.start(ModelOptions(model="demo", device="cpu", tensor_parallel=2))
    ranks.processes[0].process.kill()
    with pytest.raises(RanksFailed, match=r"rank 1 ended while the model was loaded \(killed by SIGKILL\)"):
        ranks.processes[0].await_ready()
    ranks.close()


def test_a_rank_says_why_it_refuses(tmp_path: Path) -> None:
    ranks = Ranks.start(ModelOptions(model=str(tmp_path), device="cpu", tensor_parallel=2))
    with pytest.raises(RanksFailed, match=r"rank 1: .*config\.json"):
        ranks.processes[0].await_ready()
    ranks.close()
